// weft kernels: the kernel lab (docs/kernel-lab.md). Each op has a program of its own, which lists,
// checks and times that op's variants; this starts them, adds up, and makes a page of their rows.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/kernels/kernel_sass.h"
#include "cli/kernels/kernel_skeleton.h"
#include "cli/report/kernel_report.h"
#include "cli/run_program.h"
#include "io/files.h"
#include "io/nearest.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

const Words kOps = {
#define WEFT_OP(name) #name,
#include "kernels/ops.inc"
#undef WEFT_OP
};

/// A program of the lab, beside this one, with its arguments: kernels/softmax/softmax_lab check.
Words program(const std::string& path, Words arguments) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path name = fs::path(path).filename();
  for (const fs::path& candidate : {folder / ".." / "kernels" / path, folder / name,
                                    folder / ".." / "libexec" / "weft" / name}) {
    if (!fs::exists(candidate)) continue;
    arguments.insert(arguments.begin(), candidate.lexically_normal());
    return arguments;
  }
  fail("kernels: {} was not built; ./weft kernels builds what it starts", path);
}

/// In the place of an op: the one that --plugin brings.
constexpr const char* kOpOfPlugin = "";

std::string lab_of(const std::string& op) {
  return op == kOpOfPlugin ? "testing/plugin_lab" : op + "/" + op + "_lab";
}

/// The last row of a program with --json, {"checked":3,"failed":0,"skipped":1}, or {"timed":...}.
bool is_total(const std::string& line) {
  return line.starts_with("{\"checked\"") || line.starts_with("{\"timed\"");
}

/// The value of --name VALUE or --name=VALUE, taken out of the words.
std::optional<std::string> take_option(Words& words, const std::string& name) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (word->starts_with(name + "=")) {
      const std::string value = word->substr(name.size() + 1);
      words.erase(word);
      return value;
    }
    if (*word != name) continue;
    check_usage(word + 1 != words.end(), "kernels: {} needs a value", name);
    const std::string value = word[1];
    words.erase(word, word + 2);
    return value;
  }
  return std::nullopt;
}

bool has_option(const Words& words, const std::string& name) {
  return std::ranges::any_of(
      words, [&](const std::string& word) { return word == name || word.starts_with(name + "="); });
}

/// One command of the lab on some ops.
struct Lab {
  std::string command;
  Words ops;
  Words options;  // of the ops' programs

  /// `print` gets the lines that are not totals.
  int run(const std::function<void(const std::string&)>& print) const {
    Words words = options;
    words.insert(words.begin(), command);
    const bool as_json = has_option(options, "--json");
    const fs::path roofline_file =
        fs::temp_directory_path() / fmt::format("weft-roofline-{}.json", ::getpid());
    if (command == "bench" && !has_option(options, "--roofline") &&
        !has_option(options, "--help")) {
      Words rest = options, of_roofline;
      if (const auto device = take_option(rest, "--device")) of_roofline = {"--device", *device};
      std::string row;
      const int status = run_program(program("testing/roofline", of_roofline),
                                     [&](const std::string& line) { row += line + "\n"; });
      if (status != 0) return status;
      io::write_file_atomically(roofline_file, [&](io::FileWriter& file) { file.write(row); });
      if (as_json) print(row.substr(0, row.size() - 1));
      words.insert(words.end(), {"--roofline", roofline_file.string()});
    }
    auto totals = ordered_json::object();
    int result = 0;
    for (const std::string& op : ops) {
      const int status = run_program(program(lab_of(op), words), [&](const std::string& line) {
        if (as_json && is_total(line)) {
          const ordered_json total = ordered_json::parse(line);
          for (const auto& [name, count] : total.items()) {
            totals[name] = totals.value(name, int64_t{0}) + count.get<int64_t>();
          }
        } else {
          print(line);
        }
      });
      if (status != 0) result = status;
      if (status == kUsage) break;
    }
    io::remove_tree(roofline_file);
    if (result != kUsage && !totals.empty()) print_json(totals);
    return result;
  }
};

/// Times the ops, or takes the rows of an earlier run, and makes a page of them.
int report(Lab lab) {
  const std::string html = take_option(lab.options, "--html").value_or("kernels.html");
  std::string rows = take_option(lab.options, "--rows").value_or("");
  if (rows.empty()) {
    // The rows stay beside the page: they are the figures.
    rows = html + ".rows.jsonl";
    lab.command = "bench";
    lab.options.push_back("--json");
    std::string text;
    const int status = lab.run([&](const std::string& line) { text += line + "\n"; });
    if (status != 0) return status;
    io::write_file_atomically(rows, [&](io::FileWriter& file) { file.write(text); });
  }
  std::istringstream file(io::read_text(rows));
  kernel_page(read_kernel_rows(file, rows)).write(html);
  fmt::print("{}\n", html);
  return 0;
}

int run(const Words& words) {
  static const Words kCommands = {"list", "check", "bench", "report", "sass", "new"};
  Lab lab{.command = words.empty() ? "" : words[0], .ops = kOps};
  check_usage(std::ranges::count(kCommands, lab.command) > 0,
              "kernels: expected one of {}, got \"{}\"{}", fmt::join(kCommands, ", "), lab.command,
              io::did_you_mean(lab.command, kCommands));
  if (lab.command == "new") return write_kernel_skeleton({words.begin() + 1, words.end()});
  if (lab.command == "sass") return report_machine_code({words.begin() + 1, words.end()});
  lab.options.assign(words.begin() + 1, words.end());
  if (!lab.options.empty() && !lab.options[0].starts_with("-")) {
    const std::string op = lab.options[0];
    check_usage(std::ranges::count(kOps, op) > 0, "kernels: no op \"{}\": expected one of {}{}", op,
                fmt::join(kOps, ", "), io::did_you_mean(op, kOps));
    lab.ops = {op};
    lab.options.erase(lab.options.begin());
  } else if (has_option(lab.options, "--plugin")) {
    lab.ops = {kOpOfPlugin};
  } else if (has_option(lab.options, "--help") || has_option(lab.options, "-h")) {
    lab.ops = {kOps.front()};  // every op has the same options
    fmt::print("Of any OP, here {}:\n", kOps.front());
    std::fflush(stdout);
  } else {
    for (const char* option : {"--shape", "--variant", "--case"}) {
      check_usage(!has_option(lab.options, option),
                  "kernels {0}: {1} needs an op: kernels {0} OP {1} ...", lab.command, option);
    }
  }
  if (lab.command == "report") return report(std::move(lab));
  return lab.run([](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  });
}

}  // namespace

void add_kernels(Command& app, Action& action) {
  Command& command = app.subcommand("kernels",
                                    "List, check and time the kernels: weft kernels "
                                    "list|check|bench|report|sass|new [OP] [OPTION...]",
                                    kMeasuringCommands);
  command.footer(
      "  list [OP]                   List the variants, and how many cases each of them takes\n"
      "  check [OP] [OPTION...]      Compare every variant with the reference on every case\n"
      "  bench [OP] [OPTION...]      Time the variants beside the roofline and the vendor's "
      "library\n"
      "  report [OP] [OPTION...]     Write what bench measures as a page\n"
      "    --html FILE               Page to write (default: kernels.html)\n"
      "    --rows FILE               Rows of an earlier report, in the place of measuring\n"
      "  sass OP [OPTION...]         Compile the kernels and say what their machine code holds\n"
      "    --gpu GPU                 h100 (default), h200, a100, a10, 4090, b200 or 5090\n"
      "    --kernel TEXT             Kernels and files with this text in their names\n"
      "    --json                    A JSON object for each kernel\n"
      "  new OP DIR [--cuda]         Write the skeleton of a variant outside the tree, or of a new "
      "op\n"
      "\n"
      "  --plugin FILE               Of list, check, bench and report: a variant outside the "
      "tree,\n"
      "                              a .cc, .cu or .so file; without OP a folder that brings an "
      "op\n"
      "\n"
      "OP is a folder of kernels/ (default: every op). weft kernels check OP --help and weft "
      "kernels\n"
      "bench OP --help list their options; docs/kernel-lab.md says what they measure.");
  command.leave_remaining();
  command.on_parsed(
      [&command, &action] { action = [words = command.remaining()] { return run(words); }; });
}

}  // namespace weft::cli
