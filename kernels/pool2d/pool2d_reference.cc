// Plain loops in f64. Maxima and their positions are exact. An average of n elements takes at most
// n additions and a division in f32 (f64), a gradient of n contributions as many additions and a
// division each: gamma_{n+1} times the sum of magnitudes (numerics/error_bounds.h), plus the
// rounding to the dtype.
#include <cmath>

#include "kernels/pool2d/pool2d.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

struct Window {
  std::vector<int64_t> inside;  // positions h W + w, row by row
  double count = 0;             // the average's divisor
};

Window window_at(const Pool2dProblem& p, int64_t o, int64_t q) {
  const int64_t H = p.image().shape()[2], W = p.image().shape()[3];
  Window window;
  for (int64_t r = 0; r < p.kernel[0]; ++r) {
    for (int64_t s = 0; s < p.kernel[1]; ++s) {
      const int64_t h = o * p.stride[0] - p.padding[0] + r * p.dilation[0];
      const int64_t w = q * p.stride[1] - p.padding[1] + s * p.dilation[1];
      const bool inside = h >= 0 && h < H && w >= 0 && w < W;
      if (inside) window.inside.push_back(h * W + w);
      const bool padded = h < H + p.padding[0] && w < W + p.padding[1];
      window.count += p.count_include_pad ? padded : inside;
    }
  }
  return window;
}

}  // namespace

std::vector<Expected> pool2d_reference(const Pool2dProblem& p) {
  const int64_t planes = p.image().shape()[0] * p.image().shape()[1];
  const int64_t P = p.result().shape()[2], Q = p.result().shape()[3];
  const int64_t plane_size = p.image().shape()[2] * p.image().shape()[3];
  const double u = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  const bool is_max = p.kind == PoolKind::kMax;
  const std::vector<double> in = (p.backward() ? p.dy : p.x).to_vector();
  const auto bound = [&](double terms, double magnitude) {
    const double error = numerics::sum_bound(terms, u, magnitude);
    return error + numerics::rounding_error(magnitude + error, p.dtype());
  };
  if (!p.backward()) {
    Expected y, indices;
    for (int64_t i = 0; i < planes * P * Q; ++i) {
      const Window window = window_at(p, i / Q % P, i % Q);
      const double* plane = in.data() + i / (P * Q) * plane_size;
      int64_t first = window.inside.front();
      double sum = 0, magnitude = 0;
      for (int64_t at : window.inside) {
        if (!std::isnan(plane[first]) && !(plane[at] <= plane[first])) first = at;
        sum += plane[at];
        magnitude += std::abs(plane[at]);
      }
      y.add(is_max ? plane[first] : sum / window.count,
            is_max ? 0 : bound(window.inside.size() + 1.0, magnitude / window.count));
      indices.add(static_cast<double>(first), 0);
    }
    if (p.indices.defined()) return {y, indices};
    return {y};
  }
  std::vector<double> sum(planes * plane_size), magnitude(sum.size()), terms(sum.size());
  const auto add = [&](int64_t at, double value) {
    sum[at] += value;
    magnitude[at] += std::abs(value);
    terms[at] += 1;
  };
  const std::vector<double> indices = is_max ? p.indices.to_vector() : std::vector<double>();
  for (int64_t i = 0; i < planes * P * Q; ++i) {
    const int64_t first = i / (P * Q) * plane_size;
    if (is_max) {
      add(first + static_cast<int64_t>(indices[i]), in[i]);
    } else {
      const Window window = window_at(p, i / Q % P, i % Q);
      for (int64_t at : window.inside) add(first + at, in[i] / window.count);
    }
  }
  Expected dx{sum, {}};
  for (size_t i = 0; i < sum.size(); ++i) {
    // One contribution to a maximum is moved, not computed.
    dx.bounds.push_back(is_max && terms[i] <= 1 ? 0 : bound(terms[i] + 1, magnitude[i]));
  }
  return {dx};
}

}  // namespace weft::kernels
