// Rotary positions: queries and keys are turned by angles that grow with their position, so that
// their products depend on the distance alone. Su et al., "RoFormer", arXiv:2104.09864, section
// 3.4.2. With D elements in a row, i in [0, D/2) and w_i = base^(-2i/D):
//
//   y[t, i]       = x[t, i] cos(t w_i) - x[t, i + D/2] sin(t w_i)
//   y[t, i + D/2] = x[t, i + D/2] cos(t w_i) + x[t, i] sin(t w_i)
//
// The pairs are made of the two halves, as in GPT-NeoX and Llama. RoFormer's are neighbours, 2i and
// 2i + 1: the same function but for the order of the rows of the projections before it.
#pragma once

#include "core/tensor.h"

namespace weft::nn {

class RotaryPositions {
 public:
  /// Throws Error unless D is even and all three are positive.
  RotaryPositions(int64_t positions, int64_t width, double base = 10000);

  /// x [..., T, D], its rows at the positions [first, first + T). In f32 or wider, rounded to x's
  /// dtype at the end. Throws Error for another D and for positions that there are not.
  Tensor rotate(const Tensor& x, int64_t first = 0) const;

 private:
  Tensor cosines_, sines_;  // f64 [positions, D / 2]
};

}  // namespace weft::nn
