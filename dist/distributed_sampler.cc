#include "dist/distributed_sampler.h"

#include "core/error.h"
#include "data/loader.h"

namespace weft::dist {

DistributedSampler::DistributedSampler(int64_t examples, int ranks, int rank,
                                       const SamplerOptions& options)
    : examples_(examples), ranks_(ranks), rank_(rank), options_(options) {
  WEFT_CHECK(examples > 0, "sampler: the number of examples must be positive, got {}", examples);
  WEFT_CHECK(ranks > 0 && rank >= 0 && rank < ranks, "sampler: rank {} is not one of {}", rank,
             ranks);
}

int64_t DistributedSampler::size() const {
  return options_.drop_last ? examples_ / ranks_ : (examples_ + ranks_ - 1) / ranks_;
}

std::vector<int64_t> DistributedSampler::indices() const {
  const std::vector<int64_t> order =
      data::epoch_order(examples_, options_.shuffle, options_.seed, epoch_);
  std::vector<int64_t> mine;
  for (int64_t i = 0; i < size(); ++i) mine.push_back(order[(rank_ + i * ranks_) % examples_]);
  return mine;
}

}  // namespace weft::dist
