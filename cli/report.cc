// weft report: a page of one run or several (cli/report/run_page.h).
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/report/run_page.h"
#include "core/error.h"
#include "core/parallel.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::string output;
  bool skips_evaluation = false;
  int threads = 0;
};

/// Throws Error for a file that is there and is none of ours.
void check_is_page(const std::string& path) {
  if (path.empty() || !std::filesystem::is_regular_file(path)) return;
  constexpr std::string_view kBegin = "<!DOCTYPE html>";
  std::string begin(kBegin.size(), '\0');
  std::ifstream(path).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  WEFT_CHECK(begin == kBegin || std::filesystem::file_size(path) == 0,
             "--output: {} is there and no page; expected a new file, or a page to replace", path);
}

int run_report(const Arguments& a) {
  if (a.threads > 0) set_num_threads(a.threads);
  check_is_page(a.output);
  std::vector<report::RunRecord> runs;
  for (const std::string& run : a.runs) runs.push_back(report::read_run(run, !a.skips_evaluation));
  const std::filesystem::path usual =
      a.runs.size() == 1 ? std::filesystem::path(a.runs[0]) / "report.html" : "report.html";
  const std::string output = a.output.empty() ? usual.string() : a.output;
  report::run_page(std::move(runs)).write(output);
  fmt::print("report     {}\n", output);
  return 0;
}

}  // namespace

void add_report(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_report, "report",
      "Make a page of training runs: curves, mistakes, and what differs between them",
      kTrainingCommands);
  command.option("RUN", a.runs, "Directories of runs", {.takes = "DIR", .required = true});
  command.option("--output", a.output, "The page, an HTML file that needs no other",
                 {.takes = "FILE", .usual = "RUN/report.html; of several runs report.html"});
  command.flag("--no-evaluation", a.skips_evaluation,
               "Do not evaluate the last checkpoint of a run that has no validation.json of it");
  add_threads_option(command, a.threads);
}

}  // namespace weft::cli
