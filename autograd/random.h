// The random generator of ops: dropout, rand, initialisers.
#pragma once

#include <cstdint>

#include "core/tensor.h"

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
/// For what is drawn by kernels of a graph that this thread captures (core/graph.h): an i64 on the
/// device, by how many blocks the generator has moved on from the capture when the graph is
/// launched. A launch draws what the captured work would draw if it were run instead, and moves the
/// generator on as far. Undefined outside a capture. To be asked for before the blocks are taken.
/// Launches throw Error when the generator's seed or stream has changed.
Tensor moved_since_capture(Device device);

/// Restarts this thread's generator.
inline void manual_seed(uint64_t seed) { generator() = {.seed = seed}; }

}  // namespace weft
