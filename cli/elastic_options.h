// Options of commands whose ranks may fail, or change in number.
#pragma once

#include "cli/command.h"
#include "dist/comm/processes/launch.h"

namespace weft::cli {

/// Adds --max-restarts, --min-devices and --devices-file.
inline void add_elastic_options(Command& command, dist::LaunchOptions& options) {
  command.option("--max-restarts", options.max_restarts,
                 "Times to start all ranks again, of a training from the last checkpoint if there "
                 "is one, when one fails",
                 {.check = in_range(0, 1000)});
  command.option("--min-devices", options.min_ranks,
                 "Start again without the ranks that a signal has ended, on as many of the others "
                 "as the strategy takes, so many at least; 0: on as many as before",
                 {.check = non_negative(), .needs = {"--max-restarts"}});
  command.option("--devices-file", options.ranks_file,
                 "File that holds a number of devices: when it changes, the ranks are asked to "
                 "stop, and so many go on",
                 {.check = existing_file(), .takes = "FILE", .usual = "none"});
}

/// Throws UsageError where they do not go with so many ranks, or with what a file says.
inline void check_elastic_options(const dist::LaunchOptions& options) {
  check_usage(options.min_ranks <= options.ranks,
              "--min-devices: expected a number of devices, at most {}, got {}", options.ranks,
              options.min_ranks);
  if (options.ranks_file.empty()) return;
  as_usage([&] { dist::check_ranks_file(options.ranks_file); }, "--devices-file");
}

}  // namespace weft::cli
