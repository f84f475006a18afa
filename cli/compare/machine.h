// The processor, in words.
#pragma once

#include <nlohmann/json.hpp>

namespace weft::cli {

/// {"sockets", "caches": "L1d 48K, L2 2048K, L3 32768K", "instruction_sets": "avx2 avx512f ..."}:
/// of core 0, those instruction sets that make a difference to kernels; as far as Linux tells.
nlohmann::ordered_json describe_machine();

}  // namespace weft::cli
