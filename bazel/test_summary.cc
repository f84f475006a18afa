// What `bazel test` did, counted: test_summary EVENTS TESTLOGS STATUS
//
// EVENTS is Bazel's file of events (--build_event_json_file), an object a line: one per target that
// was built, skipped as incompatible, or not built, and one per test that ran. Cases that a test
// skipped are lines of its log, "SKIPPED: reason". STATUS is Bazel's own. Names what failed, and
// shows how its log ends; exits 1 when anything did or nothing passed.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// "//kernels/softmax:softmax_test" is kernels/softmax/softmax_test/test.log.
fs::path log_of(const fs::path& logs, const std::string& label) {
  const size_t colon = label.find(':');
  return logs / label.substr(2, colon - 2) / label.substr(colon + 1) / "test.log";
}

/// A log's last lines, which say what failed: Catch2 prints a failure where it happens, and counts
/// at the end.
void print_end(const fs::path& log) {
  constexpr size_t kLines = 30;
  std::deque<std::string> lines;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line.substr(0, 300));
    if (lines.size() > kLines) lines.pop_front();
  }
  for (const std::string& line : lines) std::printf("    %s\n", line.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: test_summary EVENTS TESTLOGS STATUS\n");
    return 2;
  }
  int passed = 0, skipped = 0;
  std::map<std::string, std::string> failures;  // by label: how it failed
  std::map<std::string, int> skips;
  std::ifstream events(argv[1]);
  for (std::string line; std::getline(events, line);) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("id")) continue;
    const json& id = event["id"];
    if (event.contains("testSummary")) {
      const std::string label = id["testSummary"].value("label", "//:");
      const std::string status = event["testSummary"].value("overallStatus", "");
      if (status != "PASSED") {
        failures[label] = status;
        continue;
      }
      ++passed;
      std::ifstream log(log_of(argv[2], label));
      for (std::string text; std::getline(log, text);) {
        if (!text.starts_with("SKIPPED: ")) continue;
        ++skips[text];
        ++skipped;
      }
    } else if (id.contains("targetCompleted")) {
      const bool is_built =
          event.contains("completed") && event["completed"].value("success", false);
      const bool is_incompatible =
          event.contains("aborted") && event["aborted"].value("reason", "") == "SKIPPED";
      if (!is_built && !is_incompatible) {
        failures.try_emplace(id["targetCompleted"].value("label", "//:"), "NOT BUILT");
      }
    }
  }
  std::printf("\n");
  for (const auto& [reason, count] : skips) std::printf("%7d %s\n", count, reason.c_str());
  for (const auto& [label, status] : failures) {
    std::printf("%s: %s\n", status.c_str(), label.c_str());
    if (status != "NOT BUILT") print_end(log_of(argv[2], label));
  }
  const bool is_fine = failures.empty() && passed > 0 && std::atoi(argv[3]) == 0;
  std::printf("%s\n%d passed, %zu failed, %d skipped\n",
              is_fine ? "All tests passed." : "Tests or builds failed.", passed, failures.size(),
              skipped);
  return is_fine ? 0 : 1;
}
