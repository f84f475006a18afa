// weft launch: a program as several ranks.
#include <string>
#include <vector>

#include "cli/command.h"
#include "dist/comm/processes/launch.h"

namespace weft::cli {
namespace {

struct Arguments {
  dist::LaunchOptions options;
  std::vector<std::string> command;
  int max_restarts = 0;
};

int launch(const Arguments& a) { return dist::launch(a.options, a.command, a.max_restarts); }

}  // namespace

void add_launch(CLI::App& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, launch, "launch",
      "Run a program as several ranks: weft launch --devices 4 -- PROGRAM ARGUMENT...",
      kDeviceCommands);
  add_option(command, "--devices", a.options.ranks, "Number of ranks to start",
             {.check = CLI::Range(1, 1 << 16), .usual = ""})
      ->required();
  add_option(command, "--hosts", a.options.hostfile,
             "File that names the hosts, as for mpirun's --hostfile",
             {.check = CLI::ExistingFile, .takes = "FILE", .usual = "this host"});
  add_option(command, "--max-restarts", a.max_restarts,
             "Times to start all ranks again when one fails", {.check = CLI::Range(0, 1000)});
  command.add_option("command", a.command, "The program and its arguments, behind --")->required();
  command.footer("The exit code is that of the first rank that failed.");
}

}  // namespace weft::cli
