// A training run's place among the ranks that share it.
//
// A step takes a global batch, cut into pieces: one per data rank (several where its strategy works
// on several at a time), or with a deterministic reduction M whatever the number of ranks. Data
// rank r of N takes the pieces r, r + N, ... in M / N rounds. Ranks that share a layer or a
// pipeline are one data rank. Dropout in a piece is drawn from a stream that belongs to the piece,
// not to the rank; losses are weighted with the pieces' share of the samples; sums that are
// reported are exact (dist/exact_sum.h). So with M pieces a run has the same bits on 1, 2, 4, ...,
// M ranks, and without on any number of ranks the same mathematics.
#pragma once

#include <functional>
#include <memory>

#include "data/loader.h"
#include "dist/exact_sum.h"
#include "dist/strategy.h"
#include "dist/tree_accumulator.h"
#include "train/config.h"
#include "train/fabric.h"

namespace weft::train {

class Ranks {
 public:
  /// `world` is null in a run of one rank; `device` says of what kind those of several are. Throws
  /// Error where the settings and the world's size do not go together.
  Ranks(const Config& config, Device device, const dist::CommunicatorPtr& world);

  /// This process among those of the run.
  int rank() const { return fabric_.rank(); }
  int size() const { return fabric_.size(); }
  bool is_main() const { return rank() == 0; }
  /// False: one rank, one piece, and nothing here changes anything.
  bool is_active() const { return size() > 1 || pieces_ > 1; }
  Fabric& fabric() { return fabric_; }
  dist::Strategy& strategy() const { return fabric_.strategy(); }

  /// Images of a step's batch on all ranks together.
  int64_t global_batch() const { return global_batch_; }
  /// Pieces that a rank takes of a batch.
  int64_t rounds() const { return pieces_ / strategy().data_size(); }
  /// Takes this rank's pieces of batches of all ranks together.
  data::LoaderOptions share(data::LoaderOptions options, bool trains) const;

  /// Before a piece's forward: its random stream.
  void begin_piece(int64_t epoch, int64_t index) const;
  /// What to weight the loss of a piece of `images` with, in a step of `parts` pieces per rank.
  double weight(int64_t images, int64_t parts) const;
  /// Forward and backward of a step's pieces; gradients in the order of the tree.
  void run(int64_t pieces, const std::function<dist::MicroBatch(int64_t)>& piece,
           const Tensors& parameters);

  /// What a rank counted, and what all counted together. The loss is summed exactly.
  struct Sums {
    dist::ExactSum loss;
    int64_t correct = 0, images = 0;
    bool stops = false;  // on any rank
  };
  /// A loss that several ranks computed counts once.
  Sums sum(Sums mine) const;
  /// Of all gradients of all ranks.
  double grad_norm(const Tensors& parameters) const;
  void barrier() const { fabric_.barrier(); }

 private:
  const Config& config_;
  Fabric fabric_;
  int64_t global_batch_;
  int pieces_;
};

}  // namespace weft::train
