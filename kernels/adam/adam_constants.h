// The scalars of a step of Adam as kernels use them, each computed in f64 and rounded once.
#pragma once

#include <cmath>

#include "kernels/adam/adam.h"

namespace weft::kernels {

/// Acc: the type of the arithmetic, float or double.
template <class Acc>
struct AdamConstants {
  Acc gradient_scale, decay, l2, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size,
      root_correction, eps;
  bool scales, decays, adds_l2, small_beta1;

  explicit AdamConstants(const AdamProblem& p)
      : gradient_scale(static_cast<Acc>(p.gradient_scale)),
        decay(static_cast<Acc>(1 - p.lr * p.weight_decay)),
        l2(static_cast<Acc>(p.weight_decay)),
        beta1(static_cast<Acc>(p.beta1)),
        one_minus_beta1(static_cast<Acc>(1 - p.beta1)),
        beta2(static_cast<Acc>(p.beta2)),
        one_minus_beta2(static_cast<Acc>(1 - p.beta2)),
        step_size(static_cast<Acc>(p.lr / (1 - std::pow(p.beta1, static_cast<double>(p.step))))),
        root_correction(
            static_cast<Acc>(std::sqrt(1 - std::pow(p.beta2, static_cast<double>(p.step))))),
        eps(static_cast<Acc>(p.eps)),
        scales(p.gradient_scale != 1),
        decays(p.decoupled && p.weight_decay != 0),
        adds_l2(!p.decoupled && p.weight_decay != 0),
        small_beta1(p.beta1 <= 0.5) {}

  /// Gradients are multiplied by a gate's coefficient, too.
  constexpr void scale_by(double coefficient) {
    if (coefficient == 1) return;
    gradient_scale = static_cast<Acc>(gradient_scale * coefficient);
    scales = true;
  }
};

}  // namespace weft::kernels
