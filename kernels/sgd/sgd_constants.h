// The scalars of a step of SGD as kernels use them, each computed in f64 and rounded once.
#pragma once

#include "kernels/sgd/sgd.h"

namespace weft::kernels {

/// Acc: the type of the arithmetic, float or double.
template <class Acc>
struct SgdConstants {
  Acc gradient_scale, weight_decay, momentum, one_minus_dampening, lr;
  bool scales, decays, has_momentum, nesterov, first_step;
  double exact_scale, exact_decay, trust_coefficient;

  explicit SgdConstants(const SgdProblem& p)
      : gradient_scale(static_cast<Acc>(p.gradient_scale)),
        weight_decay(static_cast<Acc>(p.weight_decay)),
        momentum(static_cast<Acc>(p.momentum)),
        one_minus_dampening(static_cast<Acc>(1 - p.dampening)),
        lr(static_cast<Acc>(p.lr)),
        scales(p.gradient_scale != 1),
        decays(p.weight_decay != 0),
        has_momentum(p.momentum != 0),
        nesterov(p.nesterov),
        first_step(p.first_step),
        exact_scale(p.gradient_scale),
        exact_decay(p.weight_decay),
        trust_coefficient(p.trust_coefficient) {}

  /// Gradients are multiplied by a gate's coefficient, too.
  constexpr void scale_by(double coefficient) {
    if (coefficient == 1) return;
    gradient_scale = static_cast<Acc>(gradient_scale * coefficient);
    exact_scale *= coefficient;
    scales = true;
  }
  /// For a layer whose parameter and gradient have these two norms.
  constexpr void take_rate_of(double weight, double unscaled) {
    const double gradient = exact_scale * unscaled;
    if (!(weight > 0 && gradient > 0)) return;
    const double rate = trust_coefficient * weight / (gradient + exact_decay * weight);
    gradient_scale = static_cast<Acc>(rate * exact_scale);
    weight_decay = static_cast<Acc>(rate * exact_decay);
    scales = true;
  }
};

}  // namespace weft::kernels
