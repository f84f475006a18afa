// The formats' own saturating conversion of the f32 product: the bound is 0.
#include <cmath>

#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft::kernels {

std::vector<Expected> fp8_quantize_reference(const Fp8QuantizeProblem& p) {
  std::vector<Expected> result;
  const std::vector<double> x = p.x.to_vector();
  const auto scale = static_cast<float>(p.scale);
  if (p.y.defined()) {
    std::vector<double> y;
    for (double value : x) {
      const float scaled = static_cast<float>(value) * scale;
      y.push_back(p.y.dtype() == DType::f8e4m3 ? to_double(f8e4m3(scaled, Overflow::kSaturate))
                                               : to_double(f8e5m2(scaled, Overflow::kSaturate)));
    }
    result.push_back({y, std::vector<double>(y.size())});
  }
  if (p.amax.defined()) {
    double amax = 0;
    for (double value : x) {
      amax = std::isnan(value) || std::isnan(amax) ? NAN : std::max(amax, std::abs(value));
    }
    result.push_back({{amax}, {0}});
  }
  return result;
}

}  // namespace weft::kernels
