// Plain loops in f64. Bounds: a sum of n products in any order carries gamma_n times the sum of
// magnitudes (numerics/error_bounds.h), with two more roundings for the bias and for partial sums
// that start from the first one, and the rounding to the dtype; oneDNN's bf16 flushes results below
// 2^-126 to zero. Integers whose sums stay below 2^24 are exact in f32, and bounded by 0 where the
// dtype holds them.
#include <cmath>

#include "kernels/conv2d/conv2d.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

struct Sums {
  std::vector<double> values, magnitudes, terms;

  explicit Sums(int64_t n) : values(n), magnitudes(n), terms(n) {}
  void add(int64_t i, double term) {
    values[i] += term;
    magnitudes[i] += std::abs(term);
    terms[i] += 1;
  }
};

bool all_integers(const std::vector<double>& values) {
  for (double v : values) {
    if (v != std::floor(v)) return false;
  }
  return true;
}

Expected expect(const Sums& sums, bool integers, DType arithmetic, DType dtype) {
  const double u = arithmetic == DType::f64 ? 0x1p-53 : 0x1p-24;
  Expected expected{sums.values, {}};
  for (size_t i = 0; i < sums.values.size(); ++i) {
    const double magnitude = sums.magnitudes[i];
    const bool exact_sum = integers && magnitude < 0x1p24;
    const double error = exact_sum ? 0 : numerics::sum_bound(sums.terms[i] + 2, u, magnitude);
    const bool fits = std::abs(sums.values[i]) <= 1 / unit_roundoff(dtype);
    const double rounding =
        exact_sum && fits
            ? 0
            : numerics::rounding_error(std::abs(sums.values[i]) + error, dtype) + 0x1p-126;
    expected.bounds.push_back(error + rounding);
  }
  return expected;
}

}  // namespace

std::vector<Expected> conv2d_reference(const Conv2dProblem& p) {
  const Shape image = p.image().shape(), filter = p.filter().shape(), result = p.result().shape();
  const int64_t C = image[1], H = image[2], W = image[3], K = filter[0], P = result[2];
  const int64_t R = filter[2], S = filter[3], Q = result[3];
  const int64_t group_inputs = filter[1], group_outputs = K / p.groups;
  const auto values = [](const Tensor& t) {
    return t.defined() ? t.to_vector() : std::vector<double>();
  };
  const std::vector<double> x = values(p.x), w = values(p.w), dy = values(p.dy);
  const std::vector<double> bias = values(p.bias);
  const Conv2dPass pass = p.pass();
  Sums out(pass == Conv2dPass::kForward        ? numel(result)
           : pass == Conv2dPass::kDataGradient ? numel(image)
                                               : numel(filter));
  Sums dbias(K);
  for (int64_t n = 0; n < image[0]; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      const int64_t first_channel = k / group_outputs * group_inputs;
      for (int64_t o = 0; o < P; ++o) {
        for (int64_t q = 0; q < Q; ++q) {
          const int64_t y_at = ((n * K + k) * P + o) * Q + q;
          if (!bias.empty()) out.add(y_at, bias[k]);
          if (p.dbias.defined()) dbias.add(k, dy[y_at]);
          for (int64_t c = 0; c < group_inputs; ++c) {
            for (int64_t r = 0; r < R; ++r) {
              const int64_t h = o * p.stride[0] - p.padding[0] + r * p.dilation[0];
              if (h < 0 || h >= H) continue;
              for (int64_t s = 0; s < S; ++s) {
                const int64_t v = q * p.stride[1] - p.padding[1] + s * p.dilation[1];
                if (v < 0 || v >= W) continue;
                const int64_t x_at = ((n * C + first_channel + c) * H + h) * W + v;
                const int64_t w_at = ((k * group_inputs + c) * R + r) * S + s;
                if (pass == Conv2dPass::kForward) out.add(y_at, x[x_at] * w[w_at]);
                if (pass == Conv2dPass::kDataGradient) out.add(x_at, dy[y_at] * w[w_at]);
                if (pass == Conv2dPass::kWeightGradient) out.add(w_at, dy[y_at] * x[x_at]);
              }
            }
          }
        }
      }
    }
  }
  const bool integers =
      all_integers(x) && all_integers(w) && all_integers(dy) && all_integers(bias);
  const DType written = pass == Conv2dPass::kWeightGradient ? p.dw.dtype() : p.dtype();
  std::vector<Expected> expected = {expect(out, integers, p.dtype(), written)};
  if (p.dbias.defined()) expected.push_back(expect(dbias, integers, p.dtype(), p.dbias.dtype()));
  return expected;
}

}  // namespace weft::kernels
