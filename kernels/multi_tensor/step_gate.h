// Whether an optimizer's step is taken, and how long it is, decided where the step runs: whoever
// submits it need not know what the gradients came to.
//
//   closed       skip != 0, or norm is infinite or NaN where needs_finite says so: nothing changes
//   coefficient  min(1, max_norm / (norm + 1e-6)), which multiplies the gradients; 1 for a max_norm
//                of 0. A NaN stays one, as in PyTorch's clip_grad_norm_.
//
// skip: f32 []; norm: f64 [], of all gradients together. Both are optional; kernels read them where
// the parameters lie. Host and device compute it with these functions.
#pragma once

#include "core/tensor.h"

namespace weft::kernels {

constexpr double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

struct StepGate {
  Tensor skip, norm;
  double max_norm = 0;
  bool needs_finite = false;

  /// Whether there is anything to decide.
  bool is_given() const {
    return skip.defined() || (norm.defined() && (max_norm > 0 || needs_finite));
  }
  /// Lets the same steps pass, and scales none.
  StepGate unclipped() const { return {skip, norm, 0, needs_finite}; }
};

/// What kernels are given of it, and the host of one on the CPU.
struct OpenedGate {
  const float* skip = nullptr;
  const double* norm = nullptr;
  double max_norm = 0;
  bool needs_finite = false;

  OpenedGate(const StepGate& gate) : max_norm(gate.max_norm), needs_finite(gate.needs_finite) {
    if (gate.skip.defined()) skip = gate.skip.data<float>();
    if (gate.norm.defined()) norm = gate.norm.data<double>();
  }
  constexpr bool is_closed() const {
    // x - x is 0 for a finite x alone.
    return (skip && *skip != 0) || (norm && needs_finite && !(*norm - *norm == 0));
  }
  constexpr double coefficient() const {
    return norm && max_norm > 0 ? clip_coefficient(*norm, max_norm) : 1;
  }
};

}  // namespace weft::kernels
