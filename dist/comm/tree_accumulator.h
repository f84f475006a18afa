// Gradients of micro-batches added in the order of reduce_tree.h.
//
//   TreeAccumulator tree;
//   for (each micro-batch) { backward(loss); tree.push(take_gradients(parameters)); }
//   set_gradients(parameters, tree.finish());
//
// A rank's j-th backward reduces the micro-batches j N, ..., j N + N - 1 over the N ranks; these
// are whole subtrees of the tree over all M micro-batches when N is a power of two that divides M,
// and their sums, added here like the digits of a binary counter, are the rest of it. So the sum
// has the same bits for N = 1, 2, 4, ..., M.
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
