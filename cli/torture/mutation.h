// Random damage to the bytes of a file.
#pragma once

#include <algorithm>
#include <string>

#include "core/philox.h"

namespace weft::cli {

/// One to four edits: a byte changed, a bit flipped, a range left out or repeated, the end cut off.
inline std::string mutated(std::string bytes, Philox& random) {
  for (uint64_t edits = 1 + random.below(4); edits > 0 && !bytes.empty(); --edits) {
    const size_t at = random.below(bytes.size());
    const size_t length = random.below(std::min<size_t>(64, bytes.size() - at) + 1);
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.next_u32());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace weft::cli
