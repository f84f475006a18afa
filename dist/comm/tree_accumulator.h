// Gradients of micro-batches added in the order of reduce_tree.h.
//
//   TreeAccumulator tree;
//   for (each micro-batch) { backward(loss); tree.push(take_gradients(parameters)); }
//   set_gradients(parameters, tree.finish());
//
// A rank's j-th backward reduces the micro-batches j N, ..., j N + N - 1 over the N ranks: whole
// subtrees of the tree over all M micro-batches when N is a power of two that divides M. Their
// sums are added here like the digits of a binary counter, so the bits are the same for any such N.
#pragma once

#include <vector>

#include "autograd/tape.h"

namespace weft::dist {

class TreeAccumulator {
 public:
  /// Takes the gradients of one micro-batch of this rank, aligned with those of the others;
  /// undefined ones count as 0.
  void push(Tensors gradients);
  /// The sum of all micro-batches; afterwards it is empty.
  Tensors finish();

 private:
  struct Partial {
    int64_t micro_batches = 0;
    Tensors sum;
  };
  void merge_last();
  std::vector<Partial> partials_;  // of falling sizes
};

/// The parameters' gradients, which become undefined.
Tensors take_gradients(const Tensors& parameters);
void set_gradients(const Tensors& parameters, const Tensors& gradients);

}  // namespace weft::dist
