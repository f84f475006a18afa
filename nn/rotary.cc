#include "nn/rotary.h"

#include <cmath>

#include "autograd/ops.h"
#include "core/view.h"

namespace weft::nn {

RotaryPositions::RotaryPositions(int64_t positions, int64_t width, double base) {
  WEFT_CHECK(positions > 0 && width > 0 && width % 2 == 0 && base > 0,
             "RotaryPositions: expected positive numbers and an even width, got {} positions, the "
             "width {} and the base {}",
             positions, width, base);
  const int64_t half = width / 2;
  cosines_ = Tensor::empty({positions, half}, DType::f64);
  sines_ = Tensor::empty({positions, half}, DType::f64);
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(width));
    for (int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cosines_.data<double>()[t * half + i] = std::cos(angle);
      sines_.data<double>()[t * half + i] = std::sin(angle);
    }
  }
}

Tensor RotaryPositions::rotate(const Tensor& x, int64_t first) const {
  const int64_t positions = cosines_.size(0), half = cosines_.size(1);
  WEFT_CHECK(
      x.dim() >= 2 && x.size(-1) == 2 * half && first >= 0 && first + x.size(-2) <= positions,
      "RotaryPositions: expected rows of {} at positions below {}, got {} from position {}",
      2 * half, positions, x, first);
  const DType dtype = promote(x.dtype(), DType::f32);
  const auto rows = [&](const Tensor& table) {
    return ops::to(ops::cast(view::narrow(table, 0, first, x.size(-2)), dtype), x.device());
  };
  const Tensor c = rows(cosines_), s = rows(sines_);
  const Tensor a = ops::cast(ops::narrow(x, -1, 0, half), dtype),
               b = ops::cast(ops::narrow(x, -1, half, half), dtype);
  return ops::cast(ops::cat({a * c - b * s, b * c + a * s}, -1), x.dtype());
}

}  // namespace weft::nn
