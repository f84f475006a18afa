// What a run's settings come to: those that other settings decide, with the values that these give
// them; those that its data, its weights or its model decide, with what that is; and those that
// change nothing.
//
//   const ResolvedSettings all = resolve(config);
//   all.values["strategy"];         // "ddp" of auto on several devices
//   all.open.at("image_size");      // "the data's own, up to 224": values["image_size"] is null
//   all.unused.at("bucket_mb");     // "of strategy ddp": in a run of fsdp
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/device.h"
#include "train/config.h"

namespace weft::cli {

/// By the keys of to_json(Config). `values` holds every key that is not in `unused`, and is a
/// configuration file that makes the same run: a null in one leaves a setting as it is.
struct ResolvedSettings {
  nlohmann::json values = nlohmann::json::object();
  std::map<std::string, std::string> open;    // what their value will be
  std::map<std::string, std::string> unused;  // what they are for
};

/// Of a configuration that train::validate() passed; `kind`: of the device it would run on.
ResolvedSettings resolve(const train::Config& config, const Device& kind = {});

}  // namespace weft::cli
