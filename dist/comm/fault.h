// Faults that a rank commits on purpose, to try what the others make of them:
// WEFT_DIST_FAULT=KIND:RANK:N, at the Nth collective (from 0) that this rank of the world begins,
// in all its groups.
#pragma once

#include <cstdint>

namespace weft::dist {

struct Fault {
  enum class Kind : uint8_t {
    kNone,
    kShape,    // takes part with an element less
    kOrder,    // leaves the collective out and goes on with the next
    kLost,     // its connections break
    kGarbled,  // bytes on its connections that are no message
  };
  Kind kind = Kind::kNone;
  int rank = 0;
  uint64_t at = 0;

  /// Throws Error for what is not KIND:RANK:N, with KIND shape, order, lost or garbled.
  static Fault from_environment();
};

}  // namespace weft::dist
