// weft train: settings (cli/run_settings.h), and where and how a run happens.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/devices_option.h"
#include "cli/elastic_options.h"
#include "cli/report/run_page.h"
#include "cli/run_program.h"
#include "cli/run_settings.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "dist/strategy/strategy_kind.h"
#include "train/config_files/config_file.h"
#include "train/run_directory.h"
#include "train/runs/run.h"

namespace weft::cli {
namespace {

struct Arguments {
  RunSettings settings;
  std::string device;
  train::RunOptions run;
  dist::LaunchOptions launch = {.stop_signal = SIGUSR1};
};

/// A command line with another number of devices.
std::vector<std::string> with_devices(std::vector<std::string> words, const std::string& count) {
  const auto is_option = [](const std::string& word) {
    return word == "--devices" || word.starts_with("--devices=");
  };
  const auto option = std::ranges::find_if(words, is_option);
  if (option == words.end()) {  // a file says it
    words.insert(words.end(), {"--devices", count});
  } else if (option->find('=') != std::string::npos) {
    *option = "--devices=" + count;
  } else {
    option[1] = count;
  }
  return words;
}

/// From the checkpoint in its output on.
void take_up(Arguments& arguments) {
  arguments.run.resume = std::exchange(arguments.run.output, "");
  arguments.settings = {.devices = arguments.settings.devices};
  arguments.run.strategy = arguments.settings.strategy;
}

/// What the run is done with. The settings' devices are those of the first start, run.devices those
/// of this one: in between the global batch stays. Throws UsageError for what cannot be, but Error
/// for a checkpoint that is missing or damaged.
EffectiveSettings settings_of(const Arguments& arguments) {
  const train::RunOptions& run = arguments.run;
  EffectiveSettings all;
  if (run.resume.empty()) {
    all = effective(arguments.settings, run.device);
    as_usage([&] { all.config = train::on_other_devices(all.config, run.devices); });
  } else {
    train::resumed_config({.resume = run.resume});
    as_usage([&] { all.config = train::resumed_config(run); });
  }
  as_usage([&] { train::check_model_is_shared(all.config); });
  return all;
}

/// Throws what is in the way of so many ranks when the run is started again.
void check_ranks(Arguments arguments, int ranks) {
  train::RunOptions& run = arguments.run;
  run.devices = ranks;
  if (!run.output.empty() && train::RunDirectory::holds_run(run.output)) take_up(arguments);
  settings_of(arguments);
}

/// Runs this very command line as ranks; started again, they go on from the last checkpoint.
int launch_self(const Arguments& arguments) {
  const std::vector<std::string> command = own_command_line();
  const train::RunOptions& run = arguments.run;
  const dist::LaunchOptions& options = arguments.launch;
  const bool may_restart = options.max_restarts > 0 || !options.ranks_file.empty();
  if (may_restart && run.resume.empty() && run.output.empty()) {
    throw UsageError(fmt::format("{} needs --output, to find the checkpoints",
                                 options.max_restarts > 0 ? "--max-restarts" : "--devices-file"));
  }
  return dist::launch(options, command, [&](int ranks) {
    check_ranks(arguments, ranks);
    return with_devices(command, std::to_string(ranks));
  });
}

/// Whether the command line stands for --resume OUTPUT: a launcher has started this rank again, and
/// there is a checkpoint. Throws UsageError for an --output that was there before, so that nothing
/// else is ever taken for this run.
bool goes_on(const train::RunOptions& run) {
  if (run.output.empty()) return false;
  if (dist::is_rank() && dist::restarts() > 0) return train::RunDirectory::holds_run(run.output);
  as_usage([&] { train::RunDirectory::check_holds_none(run.output); });
  return false;
}

/// The run has ended well, whatever becomes of its page.
void write_page(const std::string& output, bool is_silent) {
  const std::string page = output + "/report.html";
  try {
    report::run_page({report::read_run(output, false)}).write(page);
    if (!is_silent) fmt::print("report     {}\n", page);
  } catch (const Error& error) {
    fmt::print(stderr, "weft: note: no report was written: {}\n", error.what());
  }
}

/// With where the file says that the run happens. Throws UsageError where it is on several hosts
/// that nobody has started ranks on.
Arguments with_place(Arguments arguments, const train::ConfigFile& file, bool is_rank) {
  if (arguments.device.empty()) arguments.device = file.device;
  if (arguments.settings.devices.empty()) arguments.settings.devices = file.devices;
  std::string& hosts = arguments.launch.hostfile;
  if (is_rank || !hosts.empty()) return arguments;
  if (!file.hostfile.empty() && !std::filesystem::exists(file.hostfile)) {
    throw UsageError(
        fmt::format("{}: key \"{}\": {} is not there; expected a file, or --hosts FILE", file.path,
                    file.keys.at("hosts"), file.hostfile));
  }
  hosts = file.hostfile;
  if (file.machines > 1 && hosts.empty()) {
    throw UsageError(
        fmt::format("{}: key \"num_machines\": {} hosts, and nothing has started this process as a "
                    "rank; expected --hosts FILE, for mpirun, or on each host `weft launch --nodes "
                    "{} --devices N -- weft train ...`, or ranks of mpirun, srun or torchrun",
                    file.path, file.machines, file.machines));
  }
  return arguments;
}

/// A run stops and saves when nobody reads its standard output any more (train/stop_signals.h),
/// also where whoever has started the program ignores SIGPIPE, as service managers do. In between
/// a write still fails without ending anything.
void heed_broken_pipes() {
  struct sigaction action = {};
  if (::sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) return;
  action.sa_handler = [](int) {};
  action.sa_flags = SA_ONSTACK;
  ::sigaction(SIGPIPE, &action, nullptr);
}

int run_train(const Arguments& asked) {
  const bool is_rank = dist::is_rank();
  Arguments arguments = with_place(asked, file_of(asked.settings), is_rank);
  train::RunOptions& run = arguments.run;
  RunSettings& settings = arguments.settings;
  if (!run.resume.empty() && !settings.are_the_runs_own()) {
    throw UsageError(
        "--resume continues a run with its own settings; leave out --recipe, --config and the "
        "settings of the run");
  }
  if (goes_on(run)) take_up(arguments);
  run.device = chosen_device(arguments.device);
  if (!arguments.launch.hostfile.empty()) check_counted(settings.devices, "--hosts");
  if (is_rank) {
    run.world = dist::join_world();
    const int ranks = run.world->size();
    const int devices = device_count(settings.devices, run.device, ranks);
    settings.devices = std::to_string(devices > 0 ? devices : ranks);
  }
  run.devices = device_count(settings.devices, run.device);
  run.strategy = settings.strategy;
  const int first = is_rank ? dist::first_ranks() : 0;
  if (first > 0 && first != run.world->size()) settings.devices = std::to_string(first);
  const EffectiveSettings all = settings_of(arguments);
  const train::Config& config = all.config;
  for (const std::string& note : all.notes) {
    if (!is_rank) fmt::print(stderr, "weft: note: {}: {}\n", settings.file, note);
  }
  if (config.devices > 1 && run.device.index != 0) {
    throw UsageError(
        fmt::format("--devices {} --device {}: that is one device; expected --device {}",
                    config.devices, run.device, name(run.device.type)));
  }
  const bool has_threads =
      dist::strategy_of(config.strategy, static_cast<int>(config.devices)).devices ==
      dist::StrategyKind::Devices::kThreads;
  // A launcher's only rank has as many threads as are asked for.
  if (has_threads && is_rank && run.world->size() == 1) run.world.reset();
  const bool may_grow = !arguments.launch.ranks_file.empty();
  if (has_threads && may_grow && !is_rank) {
    throw UsageError(
        fmt::format("--devices-file {}: strategy {} has threads of one process, and their number "
                    "stays; expected a strategy of ranks, such as ddp",
                    arguments.launch.ranks_file, config.strategy.name));
  }
  arguments.launch.ranks = train::sharing_of(config).ranks();
  if (!is_rank) check_elastic_options(arguments.launch);
  if ((arguments.launch.ranks > 1 || may_grow) && !is_rank) return launch_self(arguments);
  if (!is_rank && !arguments.launch.hostfile.empty()) {
    throw UsageError(fmt::format(
        "--hosts {}: expected ranks for them, --devices 2 or more under a strategy other than dp; "
        "got --devices {} --strategy {}",
        arguments.launch.hostfile, config.devices, config.strategy.name));
  }
  heed_broken_pipes();
  try {
    const train::RunResult result =
        run.resume.empty() ? train::train(config, run) : train::resume(run);
    if (!result.interrupted && !result.output.empty()) write_page(result.output, run.json);
    return result.exit_code();
  } catch (const std::exception& error) {
    if (run.world) run.world->leave(error.what());  // the others say why, too
    throw;
  }
}

}  // namespace

void add_train(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_train, "train",
      "Train an image classifier or a language model, and save checkpoints and curves",
      kTrainingCommands);
  add_run_settings(command, a.settings);
  command.group("Devices and sharding");
  add_device_option(command, a.device);
  add_threads_option(command, a.run.threads);
  command.option("--hosts", a.launch.hostfile,
                 "File that names the hosts, as for mpirun's --hostfile, which starts the ranks",
                 {.check = existing_file(), .takes = "FILE", .usual = "this host"});
  add_elastic_options(command, a.launch);

  command.group("Output");
  command.option(
      "--output", a.run.output,
      "Directory of the run: checkpoints, weights, metrics, curves for TensorBoard and a report",
      {.check = not_empty(), .takes = "DIR", .usual = "runs/RECIPE-N"});
  command.option("--resume", a.run.resume,
                 "Continue the run of this directory with its own settings, bit for bit as if it "
                 "had not stopped",
                 {.check = not_empty(), .takes = "DIR", .excludes = {"--output"}});
  command.flag("--json", a.run.json, kJsonLines);
}

}  // namespace weft::cli
