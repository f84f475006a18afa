// Which examples a rank takes: PyTorch's DistributedSampler.
//
//   DistributedSampler sampler(dataset.size(), world.size(), world.rank(), {.shuffle = true});
//   for (epoch...) { sampler.set_epoch(epoch); for (int64_t i : sampler.indices()) ... }
//
// An epoch's order, a permutation of (seed, epoch) alone, is repeated from its start until the
// ranks divide it, or with drop_last cut; rank r takes elements r, r + N, r + 2N, ... The repeated
// examples count twice: for evaluation use the parts of split_evenly.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::dist {

struct SamplerOptions {
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
};

class DistributedSampler {
 public:
  DistributedSampler(int64_t examples, int ranks, int rank, const SamplerOptions& options = {});
  /// Without it every epoch has the order of epoch 0.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  std::vector<int64_t> indices() const;
  /// Examples per rank.
  int64_t size() const;

 private:
  int64_t examples_;
  int ranks_, rank_;
  SamplerOptions options_;
  int64_t epoch_ = 0;
};

}  // namespace weft::dist
