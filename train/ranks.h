// A training run's place among the ranks that share it.
//
// A global batch is the images that all ranks take together. It is split into micro-batches: one
// per data rank (several where a strategy works on several), or with a deterministic reduction M,
// whatever the number of ranks. Data rank r of N takes M / N of them, those of numbers r, r + N,
// ... Ranks that share a layer or a pipeline are one data rank.
//
// Dropout in a micro-batch is drawn from a stream of the micro-batch's own, not the rank's. Losses
// are weighted with the micro-batches' share of the samples. Sums that are reported are exact
// (dist/comm/exact_sum.h). So with a deterministic reduction a run has the same bits on 1, 2, 4,
// ..., M ranks; without one it has the same mathematics on any number of ranks.
//
//   Ranks ranks(config, device, world);                        // world: null for one rank
//   data::Loader loader(dataset, ranks.share(options, true));  // this rank's micro-batches
//   ranks.run(count, micro_batch, parameters);                 // forward and backward of a step
//   const Ranks::Sums all = ranks.sum(mine);                   // loss and accuracy of all ranks
#pragma once

#include <functional>
#include <memory>

#include "data/loader.h"
#include "dist/comm/exact_sum.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/strategy/strategy.h"
#include "train/config.h"
#include "train/fabric.h"

namespace weft::train {

/// What config says of device, precision, loss scale and strategy. `device` gives the kind where
/// there are several.
FabricOptions fabric_options(const Config& config, Device device);

class Ranks {
 public:
  /// `world` is null in a run of one rank. Of several ranks `device` gives the kind, cpu or cuda.
  /// Throws Error where the settings and the world's size do not go together.
  Ranks(const Config& config, Device device, const dist::CommunicatorPtr& world);

  int size() const { return fabric_.size(); }
  bool is_main() const { return fabric_.is_main(); }
  /// False for one rank with one micro-batch: then nothing here changes anything.
  bool is_active() const { return size() > 1 || micro_batches_ > 1; }
  Fabric& fabric() { return fabric_; }
  dist::Strategy& strategy() const { return fabric_.strategy(); }

  /// Images of a global batch.
  int64_t global_batch() const { return global_batch_; }
  /// Micro-batches of a global batch that a rank takes.
  int64_t micro_batches() const { return micro_batches_ / strategy().data_size(); }
  /// Options of a loader that gives this rank's micro-batches of every global batch.
  data::LoaderOptions share(data::LoaderOptions options, bool trains) const;

  /// Sets a micro-batch's random stream; to be called before its forward pass.
  void begin_micro_batch(int64_t epoch, int64_t index) const;
  /// The weight on the loss of a micro-batch of so many images, in a step of `count` micro-batches
  /// per rank.
  double weight(int64_t images, int64_t count) const;
  /// Forward and backward of a step's micro-batches; gradients are added in the order of the tree.
  void run(int64_t count, const std::function<dist::MicroBatch(int64_t)>& micro_batch,
           const Tensors& parameters);

  /// What a rank counted, and what all counted together. The loss is summed exactly.
  struct Sums {
    dist::ExactSum loss;
    int64_t correct = 0, images = 0;
    bool stops = false, saves = false;  // on any rank
  };
  /// The sums of all ranks. A loss that several ranks computed counts once.
  Sums sum(Sums mine) const;
  /// The norm over all gradients of all ranks.
  double grad_norm(const Tensors& parameters) const;

 private:
  const Config& config_;
  Fabric fabric_;
  int64_t global_batch_;
  int micro_batches_;  // of a global batch
};

}  // namespace weft::train
