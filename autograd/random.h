// The random generator of ops: dropout, rand, initialisers.
#pragma once

#include <cstdint>

namespace weft {

/// A position in a Philox stream (core/philox.h). Ops take blocks of it in order of execution, so a
/// program's numbers depend on its seed alone.
struct Generator {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t offset = 0;

  /// Reserves enough blocks of four words for n words and returns the first.
  uint64_t take(uint64_t n) {
    const uint64_t first = offset;
    offset += (n + 3) / 4;
    return first;
  }
};

/// This thread's generator. Saved in checkpoints, replayed by activation checkpointing.
inline Generator& generator() {
  thread_local Generator instance;
  return instance;
}
/// Restarts this thread's generator.
inline void manual_seed(uint64_t seed) { generator() = {.seed = seed}; }

}  // namespace weft
