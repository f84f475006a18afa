// Language models of bytes by name: what `weft train --model` takes for text.
#pragma once

#include <string>
#include <vector>

#include "models/gpt.h"

namespace weft::models {

/// "gpt": 4 layers of width 128 that see 256 bytes; "gpt_mini": 2 of width 64 that see 64. Both are
/// built like Llama, with a head of their own, so that a pipeline can cut them. Throws Error
/// listing the names for another one.
GptConfig gpt_config(const std::string& name);
std::vector<std::string> gpt_names();

}  // namespace weft::models
