// Whose gradients .grad() does not tell: those of parameters that are sharded over ranks, or that
// carry a loss scale. Who sets such parameters up answers for them (train/fabric.h), so that the
// functions of clip.h, called with the model's parameters as in a program of one device, mean the
// gradients of the whole model.
#pragma once

#include <memory>

#include "autograd/tape.h"

namespace weft::optim {

class GradientOwner {
 public:
  virtual ~GradientOwner() = default;
  /// Divides the gradients by the loss scale where that was not done, and returns the tensors at
  /// which this rank finds its part of the parameters' gradients. Empty: they are not complete yet,
  /// and clipping has to wait.
  virtual Tensors complete(const Tensors& parameters) = 0;
  /// The norm over all ranks, f64 [], given what complete() returned. Every rank calls it; a
  /// process alone does not wait for its device.
  virtual Tensor norm(const Tensors& mine) = 0;
};

/// Makes `owner` answer for the gradients of these tensors for as long as the result lives; it
/// keeps the tensors.
[[nodiscard]] std::shared_ptr<void> own_gradients(const Tensors& tensors,
                                                  std::weak_ptr<GradientOwner> owner);
/// Null: nobody answers for any of them. Throws Error when they have different owners, or one that
/// is gone.
std::shared_ptr<GradientOwner> gradient_owner(const Tensors& parameters);
/// Whether anybody answers for any of them.
bool has_gradient_owner(const Tensors& parameters);

}  // namespace weft::optim
