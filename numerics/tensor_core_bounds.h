// How far a tensor core's dot product may lie from the exact one: derived from what a step does
// (numerics/tensor_core.h), not measured.
//
// One step on p products and an accumulator, M the largest magnitude among them. Every term but
// the largest loses less than 2^-F of the alignment's 2^e <= M, p + 1 terms at most; the result is
// then rounded with a relative error of 2^-o toward zero, 2^-(o+1) to nearest, o its mantissa bits.
// With S = sum |a_k b_k| + |c|, and E the error so far, M <= S + E and
//
//   E' <= E + alpha (S + E),   alpha = (p+1) 2^-F + 2^-o (1 + (p+1) 2^-F),
//   E after n steps <= S ((1 + alpha)^n - 1).
//
// For H100 and f32 results alpha is 5.25 x 2^-23. Truncation has a bias: the error grows with n,
// and a bound in sqrt(n), good for rounding to nearest, would be violated.
//
// Source of the method: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 3;
// Blanchard et al., "Mixed precision block fused multiply-add: error analysis and application to
// GPU tensor cores", SIAM J. Sci. Comput. 42(3), 2020.
#pragma once

#include <algorithm>
#include <cmath>

#include "numerics/tensor_core.h"

namespace weft::numerics {

/// alpha of one step: its error relative to the sum of magnitudes.
inline double step_error(const FusedStep& step) {
  const double alignment = (step.terms + 1) * std::ldexp(1.0, -step.fraction_bits);
  const double rounding = std::ldexp(1.0, -step.output_bits - (step.to_nearest ? 1 : 0));
  return alignment + rounding * (1 + alignment);
}

/// Absolute bound on the error of a dot product of k terms with sum |a||b| + |c| = magnitude, as
/// long as nothing overflows. promotion_interval as in TensorCoreGemm.
inline double tensor_core_dot_bound(const TensorCoreModel& model, double k, double magnitude,
                                    double promotion_interval = 0) {
  const FusedStep& step = model.step;
  const double block = model.split_block != 0 ? model.split_block : promotion_interval;
  // Rounding of a block's sum onto the accumulator, to nearest.
  const double u = std::ldexp(1.0, model.output == DType::f16 ? -11 : -24);
  const double steps = std::ceil((block == 0 ? k : std::fmin(k, block)) / step.terms);
  const double additions = block == 0 ? 0 : std::ceil(k / block);
  const double relative =
      std::expm1(steps * std::log1p(step_error(step)) + additions * std::log1p(u));
  // A result or an aligned term near zero is a multiple of the least subnormal.
  const double all_steps = block == 0 ? steps : additions * (steps + 1);
  const double smallest = std::ldexp(1.0, std::min(step.output_exponent - step.output_bits,
                                                   step.alignment_floor - step.fraction_bits + 6));
  const double unit = std::ldexp(1.0, step.output_exponent - step.output_bits);
  return relative * magnitude + all_steps * (unit + smallest);
}

}  // namespace weft::numerics
