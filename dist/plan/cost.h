// What the strategies' formulas of memory and traffic are made of (dist/strategy/strategy_kind.h).
//
// P parameters are cut into units (dist/data_parallel/fsdp.h); F ranks share a copy, R such groups
// hold copies, T ranks share a layer, S are a pipeline: N = F R T S. Elements have 4 bytes.
// Formulas walk through the schedule of a step, unit by unit; their texts say what comes out for
// units of one size U, with Adam. `weft bench sharding` holds them against the allocator and the
// transport.
//
// Sent by each rank, in a ring or straight, n bytes whose parts the ranks divide:
//   all_reduce 2 (N-1)/N n;  all_gather, reduce_scatter (N-1)/N n.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/memory_account.h"
#include "dist/plan/model_layout.h"

namespace weft::dist {

constexpr int64_t kElementBytes = 4;

/// Bytes by MemoryKind at each kind's peak in a step; activations are not known here.
struct StateBytes {
  std::array<int64_t, kMemoryKinds> kinds{};
  int64_t operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
  int64_t& operator[](MemoryKind kind) { return kinds[static_cast<int>(kind)]; }
  int64_t total() const { return std::accumulate(kinds.begin(), kinds.end(), int64_t{0}); }
};

/// Of ddp, as DdpOptions has them. Bytes.
struct BucketSizes {
  int64_t bytes = 25 << 20, first = 1 << 20;
};

/// Whose step it is, and on what.
struct StepShape {
  int rank = 0;
  int64_t images = 1;        // of a batch, of those who share one
  int64_t ddp_elements = 0;  // of ddp's buckets with their padding; 0: as the layout cuts them
  BucketSizes buckets = {};
};

/// The next multiple of `ranks`.
inline int64_t padded(int64_t elements, int ranks) {
  return (elements + ranks - 1) / ranks * ranks;
}
/// Elements that rank r of n sends of x, cut as the communicators cut it (split_evenly).
int64_t sent_by_all_reduce(int64_t x, int n, int r);
/// Elements of ddp's buckets filled in reverse order of registration, padded for the ranks.
std::vector<int64_t> bucket_elements(const ModelLayout& layout, int ranks,
                                     const BucketSizes& sizes = {});
/// The units in the order in which a step of a fully sharded model unshards them; -1: the root.
std::vector<int> unshard_order(const ModelLayout& layout);

}  // namespace weft::dist
