// Settings of a run from a file, by our names or by those of others:
//
//   ours        YAML or JSON: the command line's names without their dashes, "batch-size: 32",
//               and where the run happens: "device: cuda", "hosts: FILE"
//   Accelerate  the YAML that `accelerate config` writes
//   DeepSpeed   the JSON of deepspeed.initialize()
//
// What a file says takes the place of a recipe's values. It is of the dialect that most of its keys
// are of. An unknown key is an error that names the nearest known one; what is known but has no
// counterpart here is told in `notes`.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/config.h"

namespace weft::train {

/// DeepSpeed's: total = micro x accumulation x devices. 0: not said.
struct BatchRule {
  int64_t total = 0, micro = 0, accumulation = 0;
};

struct ConfigFile {
  std::string path;
  std::string dialect = "weft";                        // weft, accelerate, deepspeed
  nlohmann::json settings = nlohmann::json::object();  // by the keys of to_json(Config)
  std::map<std::string, std::string> keys;  // by the same: the file's key, "bf16.enabled"
  std::vector<std::string> notes;
  /// Of a file of DeepSpeed's that names an optimizer: DeepSpeed's own values, by the same, of what
  /// optimizer, scheduler and clipping leave out. What is "auto" there somebody else says. Of one
  /// of Accelerate's that runs DeepSpeed: of the loss scale, too.
  nlohmann::json defaults = nlohmann::json::object();
  BatchRule batch;
  /// DeepSpeed's communication_data_type, the format that gradients travel in: fp32, fp16 or bf16.
  /// Empty: not said. Its key is that of "communication_dtype". The strategy, which the command
  /// line may change, decides which setting it is.
  std::string communication_dtype;
  /// Whether the settings' lr is the scheduler's: DeepSpeed gives it to any optimizer.
  bool is_lr_of_schedule = false;
  // Where a run happens, which is no setting of it. Empty: not said. Their keys are those of
  // devices, device and hosts.
  std::string devices;   // "auto": all that there are; a number is among the settings
  std::string device;    // "cpu"
  std::string hostfile;  // mpirun's
  int64_t machines = 1;

  void set(const std::string& key, nlohmann::json value, const std::string& file_key) {
    settings[key] = std::move(value);
    keys[key] = file_key;
  }
  /// What the file may leave out.
  template <class T>
  void set(const std::string& key, const std::optional<T>& value, const std::string& file_key) {
    if (value) set(key, nlohmann::json(*value), file_key);
  }
  void set_all_devices(const std::string& file_key) {
    devices = "auto";
    keys["devices"] = file_key;
  }
};

/// Throws Error naming the file, the key, its value and what was expected; for YAML of more than 1
/// MiB and for JSON of more than 32, too.
ConfigFile read_config_file(const std::string& path);
/// The same of a file's contents.
ConfigFile read_config(const nlohmann::json& values, const std::string& name);

/// `config` with the file's values in the place of its own; throws Error for a value that is of
/// another type than the setting's.
Config with_file(const Config& config, const ConfigFile& file);
/// What a file of DeepSpeed's means there: what it leaves out has DeepSpeed's own value.
Config deepspeed_config(const ConfigFile& file);

/// Gives the file's communication_dtype to the setting that it is under the configuration's
/// strategy and devices, and returns that one's key: reduce_dtype of shards, compress_dtype of
/// whole copies. Null where the strategy has neither, or the file does not say it.
const char* apply_communication_dtype(const ConfigFile& file, Config& config);

/// Splits the rule's total batch by the configuration's devices, or by its global batch. Throws
/// Error where it does not come out even, or contradicts what else the rule says.
void apply(const BatchRule& rule, const std::string& file, Config& config);

}  // namespace weft::train
