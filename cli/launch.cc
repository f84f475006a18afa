// weft launch: a program as several ranks.
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "dist/launch.h"

namespace weft::cli {
namespace {

struct Arguments {
  dist::LaunchOptions options;
  std::vector<std::string> command;
  int max_restarts = 0;
};

}  // namespace

void add_launch(CLI::App& app, Action& action) {
  CLI::App& command = *app.add_subcommand(
      "launch", "Run a program as several ranks: weft launch --devices 4 -- PROGRAM ARGUMENT...");
  const auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  command.add_option("--devices", a.options.ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, 1 << 16));
  command.add_option("--hosts", a.options.hostfile, "File of hosts, as mpirun's --hostfile")
      ->check(CLI::ExistingFile);
  command.add_option("--max-restarts", a.max_restarts, "Start all ranks again when one fails")
      ->check(CLI::Range(0, 1000));
  command.add_option("command", a.command, "The program and its arguments")->required();
  command.footer("The exit code is that of the first rank that failed.");
  command.callback([arguments, &action] {
    action = [arguments] {
      return dist::launch(arguments->options, arguments->command, arguments->max_restarts);
    };
  });
}

}  // namespace weft::cli
