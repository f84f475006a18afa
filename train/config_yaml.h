// A configuration as a file that `weft train --config` reads (train/config_files/config_file.h).
#pragma once

#include <string>

#include "train/config.h"

namespace weft::train {

/// The name on the command line, without its dashes, of a key of to_json(Config): "batch-size".
std::string option_name(std::string key);

/// The YAML that read_config_file() reads as the same settings: of all keys, or of those alone
/// whose values differ from `base`.
std::string to_yaml(const Config& config, const Config* base = nullptr);

}  // namespace weft::train
