// weft config: asks for the settings that matter most and writes them to a file; weft config show:
// what a run would be done with, and where each setting comes from.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/devices_option.h"
#include "cli/json_line.h"
#include "cli/resolved_settings.h"
#include "cli/run_settings.h"
#include "dist/strategy/strategy_kind.h"
#include "io/files.h"
#include "models/gpt_names.h"
#include "models/registry.h"
#include "train/config_files/config_file.h"
#include "train/config_yaml.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

constexpr size_t kWidestValue = 60;  // of a column

struct Arguments {
  std::string output = "weft.yaml";
  bool shows = false;  // config show
  RunSettings settings;
  bool json = false;
};

/// As a table has it: a text without quotes, unless it is empty.
std::string text_of(const nlohmann::json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty()
             ? value.get<std::string>()
             : value.dump();
}

void print_columns(const std::vector<std::array<std::string, 3>>& rows) {
  std::array<size_t, 2> widths{};
  for (const auto& row : rows) {
    widths[0] = std::max(widths[0], row[0].size());
    // The JSON of a schedule is longer than any line.
    if (row[1].size() <= kWidestValue) widths[1] = std::max(widths[1], row[1].size());
  }
  for (const auto& [name, value, rest] : rows) {
    const std::string line =
        fmt::format("{:<{}}  {:<{}}  {}", name, widths[0], value, widths[1], rest);
    fmt::print("{}\n", std::string_view(line).substr(0, line.find_last_not_of(' ') + 1));
  }
}

int show(const Arguments& a) {
  const train::ConfigFile file = file_of(a.settings);
  const Device kind = file.device.empty() ? chosen_device("") : parse_device(file.device);
  const EffectiveSettings all = effective(a.settings, kind);
  const ResolvedSettings resolved = resolve(all.config, kind);
  nlohmann::json values = resolved.values;
  // Where the file says that the run happens, which is no setting of the run.
  if (!file.device.empty()) values["device"] = file.device;
  if (!file.hostfile.empty()) values["hosts"] = file.hostfile;
  if (a.json) {
    nlohmann::ordered_json settings, origins, open = nlohmann::ordered_json::object(),
                                              unused = nlohmann::ordered_json::object();
    for (const auto& [key, value] : values.items()) {
      settings[train::option_name(key)] = value;
      origins[train::option_name(key)] = all.origins.at(key);
    }
    for (const auto& [key, what] : resolved.open) open[train::option_name(key)] = what;
    for (const auto& [key, what] : resolved.unused) unused[train::option_name(key)] = what;
    print_json({{"settings", settings},
                {"from", origins},
                {"open", open},
                {"unused", unused},
                {"notes", all.notes}});
    return 0;
  }
  std::vector<std::array<std::string, 3>> rows;
  for (const auto& [key, value] : values.items()) {
    const auto open = resolved.open.find(key);
    rows.push_back({train::option_name(key),
                    open == resolved.open.end() ? text_of(value) : "(" + open->second + ")",
                    all.origins.at(key)});
  }
  print_columns(rows);
  fmt::print("\nWithout effect in this run:\n");
  rows.clear();
  for (const auto& [key, what] : resolved.unused) {
    rows.push_back({train::option_name(key), what, ""});
  }
  print_columns(rows);
  for (const std::string& note : all.notes) fmt::print("note: {}\n", note);
  return 0;
}

struct Question {
  std::string key, text;
};

std::vector<Question> questions() {
  return {
      {"data",
       "Images to train on: builtin, cifar10:DIR, mnist:DIR or folder:DIR; or text: grammar or "
       "text:FILE"},
      {"model", fmt::format("Model: {}; of text {}", fmt::join(models::model_names(), ", "),
                            fmt::join(models::gpt_names(), ", "))},
      {"epochs", "Passes over the training images"},
      {"batch_size", "Images per device in one forward and backward pass"},
      {"accumulate", "Batches whose gradients make one optimizer step"},
      {"lr", "Learning rate at the peak of the schedule"},
      {"precision", fmt::format("Precision: {}", train::precision_names())},
      {"devices", "Number of devices; auto: all GPUs of the machine, or the CPU"},
      {"strategy", fmt::format("How they share the model and the batch: auto, {}",
                               fmt::join(dist::strategy_names(), ", "))},
      {"seed", "Seed of weights, order of images, augmentation and dropout"},
  };
}

/// Asks until the answer will do; an empty one leaves what is there. Throws Error at the end of the
/// input.
template <class Take>
void ask(const std::string& text, const std::string& usual, const Take& take) {
  for (std::string answer;;) {
    fmt::print("{} [{}]: ", text, usual);
    std::fflush(stdout);
    WEFT_CHECK(std::getline(std::cin, answer), "config: the input ended at the question \"{}\"",
               text);
    const size_t end = answer.find_last_not_of(" \t\r");
    answer.resize(end == std::string::npos ? 0 : end + 1);
    if (answer.empty()) return;
    try {
      return take(answer);
    } catch (const Error& error) {
      fmt::print("  {}\n", error.what());
    }
  }
}

int write(const Arguments& a) {
  check_usage(!std::filesystem::exists(a.output),
              "--output: {} is there already; expected the name of a new file", a.output);
  io::FileWriter(a.output);  // tried before anything is asked; its destructor removes it
  train::Config config = train::recipe("builtin-quick");
  ask(fmt::format("Recipe to start from: {}", fmt::join(train::recipe_names(), ", ")),
      config.recipe, [&](const std::string& name) { config = train::recipe(name); });
  const train::Config preset = config;
  const Device kind = chosen_device("");
  bool takes_all = false;  // "auto" of the devices is written as such: the run may be elsewhere
  for (const auto& [key, text] : questions()) {
    const nlohmann::json usual = to_json(config).at(key);
    ask(text, usual.is_string() ? usual.get<std::string>() : usual.dump(),
        [&, key = key](const std::string& answer) {
          config = with_setting(config, key, answer, "answer", kind);
          if (key == "devices") takes_all = asks_for_all(answer);
        });
  }
  if (takes_all) config.devices = preset.devices;
  io::FileWriter file(a.output);
  file.write(fmt::format("recipe: {}\n{}{}", config.recipe, takes_all ? "devices: auto\n" : "",
                         train::to_yaml(config, &preset)));
  file.finish();
  fmt::print("\nwrote {}\n\n  weft train --config {}\n  weft config show --config {}\n", a.output,
             a.output, a.output);
  return 0;
}

int run(const Arguments& a) { return a.shows ? show(a) : write(a); }

}  // namespace

void add_config(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run, "config", "Write a training run's settings to a file, or show them",
      kTrainingCommands);
  command.footer(
      "It asks for the settings that matter most, shows what an empty answer means in brackets, "
      "and\nwrites YAML for `weft train --config FILE`. That also takes the YAML of Accelerate and "
      "the JSON\nof DeepSpeed.");
  command.option("--output", a.output, "File to write", {.takes = "FILE"});
  Command& show = command.subcommand("show",
                                     "Show the settings that a run would have and where each comes "
                                     "from: default, recipe, file or command line");
  show.footer(
      "Names are those of `weft train`'s options and of the files of --config. What another "
      "setting\n"
      "decides, such as the strategy of auto, has its value; what only the data, the weights or "
      "the\n"
      "model say stands in brackets. The \"settings\" of --json are a file for --config.");
  show.on_parsed([&a = a] { a.shows = true; });
  add_run_settings(show, a.settings);
  show.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
