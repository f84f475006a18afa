// Private to Fabric.
#pragma once

#include "train/fabric.h"

namespace weft::train {

/// Answers for the gradients of all models that were set up.
class Fabric::Gradients : public optim::GradientOwner {
 public:
  explicit Gradients(Fabric& fabric) : fabric_(fabric) {}

  Tensors complete(const Tensors& parameters) override;
  Tensor norm(const Tensors& mine) override;
  /// Throws Error, naming what was called, where it was not summed over the ranks.
  static void check_summed(const Parameter& parameter, const char* what);

 private:
  void check_unscaled(const std::vector<const Parameter*>& parameters) const;

  Fabric& fabric_;
};

}  // namespace weft::train
