// 16-bit copies of f32 weights that outlive a step.
//
// A step rounds each weight for its products (autograd/autocast.h): 4 bytes of an element are read
// and 2 written. The kernel of an optimizer has the new weight at hand, so it writes the rounded
// one beside it, 2 bytes in all, and the steps to come have nothing to cast:
//
//   NarrowCopies copies;                          // an optimizer's
//   const Tensors narrow = copies.of(weights);    // some undefined
//   ...                                           // weights change, and narrow with them
//   copies.set_written(weights, narrow);
//
// A weight has a copy where Autocast casts it for a product of its own and the tape records, and
// where it is a leaf that requires a gradient, contiguous, with its storage to itself. A copy is
// good for one version of the weight (Tensor::version()); behind any other change in place it is
// rounded anew when it is asked for. Its memory stays where it is, so a captured graph can read it.
// Who changes a weight through a pointer calls bump_version().
#pragma once

#include <memory>
#include <unordered_map>

#include "autograd/tape.h"

namespace weft {

/// The copies that one optimizer writes; they go with it.
class NarrowCopies {
 public:
  struct Copy;

  /// Of each weight its copy, equal to what the weight's cast would be now; undefined where there
  /// is none. With `makes_new`, those that are missing are made.
  Tensors of(const Tensors& weights, bool makes_new = true);
  /// What of() gave has become the weights' casts as they are now, or will have when the device
  /// gets there.
  void set_written(const Tensors& weights, const Tensors& copies);

 private:
  std::unordered_map<const void*, std::shared_ptr<Copy>> kept_;  // by the weight's id
};

/// The copy of a weight in that dtype, as of() gives it, if somebody keeps one; else undefined, and
/// a NarrowCopies will make one if the tape records.
Tensor narrow_copy(const Tensor& weight, DType dtype);
/// The same in whatever dtype it is kept, and nobody will make one.
Tensor narrow_copy(const Tensor& weight);

/// The tensor's memory is in the hands of somebody who may change it without a word: from now on
/// weights that lie there have no copies.
void forbid_narrow_copies(const Tensor& x);

}  // namespace weft
