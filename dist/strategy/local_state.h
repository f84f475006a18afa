// Which part of a model's state a rank has, so that ranks save and load their own parts alone.
//
//   for (const LocalTensor& mine : strategy.local_state(model)) {
//     for (const Piece& piece : mine.placement.pieces(mine.tensor)) ...  // boxes of the whole
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/model_parallel/rank_parts.h"
#include "nn/module.h"

namespace weft::dist {

/// A box of a whole tensor: `values` has its shape, and may be strided.
struct Piece {
  Shape offset;
  Tensor values;
};

/// Where a rank's tensor lies in the whole one. Of the whole a Cut may leave this rank a part; of
/// that it may have the elements from `first` on, row by row, as a flat tensor.
struct TensorPlacement {
  Shape whole;
  struct Part {
    Cut cut;
    int ranks = 1, rank = 0;
  };
  std::optional<Part> part;
  struct Flat {
    int64_t first = 0, count = 0;
  };
  std::optional<Flat> flat;
  // Ranks that have the same bits, which share out who writes what, and this one's number among
  // them. 0: another rank's are to be written.
  int copies = 1, copy = 0;

  /// Of this rank's tensor.
  Shape local_shape() const;
  /// What of the whole a tensor of local_shape() is, as views of it. Boxes without elements are
  /// left out, but for that of a tensor that has none.
  std::vector<Piece> pieces(const Tensor& local) const;
};

struct LocalTensor {
  std::string name;  // of the entry of the model's state
  Tensor tensor;     // this rank's: a handle on what the model or the strategy keeps
  TensorPlacement placement;
};
using LocalTensors = std::vector<LocalTensor>;

/// All of a module's state, whole on each of so many ranks; of buffers, which may differ, that of
/// the first counts.
LocalTensors whole_tensors(const nn::Module& module, int copies = 1, int copy = 0);

}  // namespace weft::dist
