// The options that decide a training run, one for each setting of train/config.h: `weft train`
// runs with them, `weft config` shows them and writes them to files.
//
// Precedence: defaults, the recipe, the file of --config, the command line.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/device.h"
#include "io/command_line.h"
#include "train/config.h"
#include "train/config_files/config_file.h"

namespace weft::cli {

/// What a command line says of a run.
struct RunSettings {
  std::string recipe;  // empty: the file's, or builtin-quick
  std::string file;    // of --config
  struct Override {
    std::string key;  // of to_json(Config)
    std::function<void(train::Config&)> apply;
  };
  std::vector<Override> overrides;
  // What a resumed run may change as well; empty and 0: not said.
  std::string devices;
  dist::StrategyOptions strategy = {.name = ""};  // its name, tensor_parallel, pipeline_stages

  /// Whether nothing is said but what a resumed run may change.
  bool are_the_runs_own() const { return recipe.empty() && file.empty() && overrides.empty(); }
};

void add_run_settings(io::Command& command, RunSettings& settings);

/// The file of --config; an empty one where none is named. Throws UsageError naming what is wrong
/// with it.
train::ConfigFile file_of(const RunSettings& settings);

struct EffectiveSettings {
  train::Config config;
  // By to_json(Config)'s keys, and device and hosts where the file says them: "command line".
  std::map<std::string, std::string> origins;
  std::vector<std::string> notes;  // on what of the file changes nothing
};
/// The configuration that comes out, checked; `kind`: of device, for --devices auto. Throws
/// UsageError naming what is wrong with it.
EffectiveSettings effective(const RunSettings& settings, const Device& kind = {});

/// `config` with the setting of a key of its JSON as a text says it, by the names that the command
/// line takes, too; `from` is what errors call the text, `kind` of device, for "auto" of them.
/// Throws Error naming what is wrong with it.
train::Config with_setting(const train::Config& config, const std::string& key,
                           const std::string& text, const std::string& from,
                           const Device& kind = {});

}  // namespace weft::cli
