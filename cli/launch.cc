// weft launch: a program as several ranks.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/devices_option.h"
#include "cli/elastic_options.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"

namespace weft::cli {
namespace {

struct Arguments {
  dist::LaunchOptions options;
  std::string devices;
  std::vector<std::string> command;
};

/// Something has started this process as a rank: it becomes the program.
[[noreturn]] void become(const Arguments& a) {
  const int size = dist::rank_place().size;
  const int devices = device_count(a.devices, Device{}, size);
  check_usage(devices == 0 || devices == size, "--devices {}: {} ranks were started", devices,
              size);
  dist::set_rank_environment();
  std::vector<char*> arguments;
  for (const std::string& word : a.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  fmt::print(stderr, "weft: error: launch: cannot run {}: {}\n", a.command[0],
             std::strerror(errno));
  ::_exit(127);
}

void check_host(const dist::LaunchOptions& options) {
  check_usage(options.host < options.hosts,
              "--node-rank: expected a host's number below {}, got {}{}", options.hosts,
              options.host, options.hosts == 1 ? "; --nodes says how many there are" : "");
}

/// Each host's launcher knows its own ranks alone: all start again at once, with as many as before.
void check_constant(const dist::LaunchOptions& options) {
  const bool has_minimum = options.min_ranks > 0;
  check_usage(options.hosts == 1 || (!has_minimum && options.ranks_file.empty()),
              "{} excludes --nodes {}: the launchers of all hosts must start again together, with "
              "the same number of ranks; expected --hosts, or --max-restarts alone",
              has_minimum ? "--min-devices" : "--devices-file", options.hosts);
}

int launch(const Arguments& a) {
  // With --nodes srun starts a launcher on each, and no ranks.
  const bool is_launcher = a.options.hosts > 1 && dist::is_task_of_srun();
  if (dist::is_rank() && !is_launcher) become(a);
  check_usage(!a.devices.empty(),
              "--devices: how many ranks? Nothing has started this process as one");
  if (!a.options.hostfile.empty()) check_counted(a.devices, "--hosts");
  if (a.options.hosts > 1) check_counted(a.devices, "--nodes");
  check_constant(a.options);
  check_host(a.options);
  dist::LaunchOptions options = a.options;
  options.ranks = device_count(a.devices, chosen_device({}));
  check_elastic_options(options);
  options.as_rank = {std::filesystem::read_symlink("/proc/self/exe"), "launch", "--"};
  return dist::launch(options, a.command);
}

}  // namespace

void add_launch(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, launch, "launch",
      "Run a program as several ranks: weft launch --devices 4 -- PROGRAM ARGUMENT...",
      kDeviceCommands);
  add_devices_option(command, a.devices,
                     "Number of ranks on all hosts together; under mpirun, srun or torchrun those "
                     "that were started",
                     "");
  command.option("command", a.command, "The program and its arguments, behind --",
                 {.required = true});

  command.group("Several hosts");
  command.option("--hosts", a.options.hostfile,
                 "File that names the hosts, as for mpirun's --hostfile, which starts the ranks",
                 {.check = existing_file(), .takes = "FILE", .usual = "this host"});
  command.option("--nodes", a.options.hosts,
                 "Without mpirun: number of hosts, on each of which this command is given, with "
                 "MASTER_ADDR and MASTER_PORT in the environment",
                 {.check = in_range(1, 1 << 16), .excludes = {"--hosts"}});
  command.option("--node-rank", a.options.host, "Number of this host among them",
                 {.check = non_negative(), .environment = "NODE_RANK"});

  command.group("When a rank fails");
  add_elastic_options(command, a.options);
  command.footer(
      "Each rank has torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
      "GROUP_RANK, MASTER_ADDR, MASTER_PORT.\nThe exit code is that of the first rank that "
      "failed.");
}

}  // namespace weft::cli
