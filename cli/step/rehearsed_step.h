// What each rank of a training step keeps and sends, from a step whose kernels compute nothing
// (kernels/rehearsal): what weft estimate prints, and weft plan reckons with; and from one that
// computes, to hold the former against.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cli/step/ranked_step.h"

namespace weft::cli {

/// Bytes of a rank in a step, when buckets and the order of unsharding have settled.
struct RankCost {
  std::array<int64_t, kMemoryKinds> kinds{};  // each at its own peak
  int64_t state = 0;                          // the peak of all but activations
  int64_t peak = 0;                           // of all together
  int64_t sent = 0;

  int64_t operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
};

/// Of rank 0, which stands for all; of a pipeline's stages one after another. The bytes are those
/// that the allocator would count on this CPU, with what kernels take for themselves in the calling
/// thread. Throws Error where the model, the strategy and the devices do not go together.
std::vector<RankCost> rehearse(const RankedStepOptions& options, int devices);

/// Of each rank of a step that computes, here, with ranks as threads.
std::vector<RankCost> measure(const RankedStepOptions& options, int devices);

/// The rank with the highest peak.
const RankCost& fullest(const std::vector<RankCost>& ranks);

}  // namespace weft::cli
