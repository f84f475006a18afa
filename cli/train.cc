// weft train: settings (cli/run_settings.h), and where and how a run happens.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/report/run_page.h"
#include "cli/run_settings.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "train/runs/run.h"

namespace weft::cli {
namespace {

struct Arguments {
  RunSettings settings;
  std::string device;
  train::RunOptions run;
  int max_restarts = 0;
};

/// Runs this very command line as ranks; after a failure what it says of place and form, on top of
/// the last checkpoint.
int launch_self(int devices, const Arguments& arguments) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string word; std::getline(file, word, '\0');) command.push_back(word);
  command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
  const train::RunOptions& run = arguments.run;
  if (arguments.max_restarts > 0 && run.output.empty()) {
    throw UsageError("--max-restarts needs --output, to find the checkpoints");
  }
  // A run that failed before its first checkpoint starts anew.
  const auto again = [&] {
    if (!std::filesystem::exists(run.output + "/latest")) return command;
    std::vector<std::string> words = {command[0], "train",     "--resume",
                                      run.output, "--devices", std::to_string(devices)};
    if (!arguments.device.empty()) words.insert(words.end(), {"--device", arguments.device});
    if (run.threads > 0) words.insert(words.end(), {"--threads", std::to_string(run.threads)});
    if (run.json) words.emplace_back("--json");
    return words;
  };
  return dist::launch({.ranks = devices, .stop_signal = SIGUSR1}, command, arguments.max_restarts,
                      again);
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

int run_train(const Arguments& arguments) {
  if (!arguments.run.resume.empty() && !arguments.settings.are_the_runs_own()) {
    throw UsageError(
        "--resume continues a run with its own settings; leave out --recipe, --config and the "
        "settings of the run");
  }
  train::RunOptions run = arguments.run;
  RunSettings settings = arguments.settings;
  run.device = chosen_device(arguments.device);
  const bool is_rank = dist::is_rank();
  if (is_rank) {
    run.world = dist::join_world();
    if (settings.devices == 0) settings.devices = run.world->size();
  }
  run.devices = settings.devices;
  run.strategy = settings.strategy;
  train::Config config;
  if (!run.resume.empty()) {
    config = train::resumed_config(run);
  } else {
    const EffectiveSettings all = effective(settings);
    config = all.config;
    for (const std::string& note : all.notes) {
      if (!is_rank) fmt::print(stderr, "weft: note: {}: {}\n", settings.file, note);
    }
  }
  if (config.devices > 1 && run.device.index != 0) {
    throw UsageError(
        fmt::format("--devices {} --device {}: that is one device; expected --device {}",
                    config.devices, run.device, name(run.device.type)));
  }
  const int processes = train::sharing_of(config).ranks();
  if (processes > 1 && !is_rank) {
    return launch_self(processes, arguments);
  }
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

void add_train(CLI::App& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_train, "train",
      "Train an image classifier or a language model, and save checkpoints and curves",
      kTrainingCommands);
  add_run_settings(command, a.settings);
  command.option_defaults()->group("Devices and sharding");
  add_device_option(command, a.device);
  add_threads_option(command, a.run.threads);
  add_option(command, "--max-restarts", a.max_restarts,
             "Times to start all ranks again, from the last checkpoint if there is one, when one "
             "fails; needs "
             "--output",
             {.check = CLI::Range(0, 1000)});

  command.option_defaults()->group("Output");
  add_option(
      command, "--output", a.run.output,
      "Directory of the run: checkpoints, weights, metrics, curves for TensorBoard and a report",
      {.takes = "DIR", .usual = "runs/RECIPE-N"});
  add_option(command, "--resume", a.run.resume,
             "Continue the run of this directory with its own settings, bit for bit as if it "
             "had not stopped",
             {.takes = "DIR"})
      ->excludes("--output");
  command.add_flag("--json", a.run.json, kJsonLines);
}

}  // namespace weft::cli
