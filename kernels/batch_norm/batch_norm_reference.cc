// Plain loops in f64. Write v = 2^-53 for the sums and u for the arithmetic on elements (2^-24;
// 2^-53 for f64). A mean of M elements carries e = gamma_{M+1}(v) mean|x|. A variance about a mean
// that is off by e is larger by e^2, and carries gamma_{M+4}(v). In training rstd therefore has the
// relative error half of that of variance + eps. Each element then takes a subtraction, a
// multiplication and an addition with constants rounded to u. The sums of the gradient carry
// gamma_{M+3}(v) of their sums of magnitudes. All is in numerics/error_bounds.h; products of two
// errors are covered by doubling.
#include <cmath>

#include "kernels/batch_norm/batch_norm.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> batch_norm_reference(const BatchNormProblem& p) {
  const int64_t N = p.x.shape()[0], C = p.x.shape()[1];
  const int64_t L = N * C == 0 ? 0 : p.x.numel() / (N * C);
  const double count = static_cast<double>(N * L);
  const double u = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24, v = 0x1p-53;
  const DType statistics_type = p.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto vector_of = [&](const Tensor& t, double missing) {
    return t.defined() ? t.to_vector() : std::vector<double>(C, missing);
  };
  const std::vector<double> x = p.x.to_vector();
  const std::vector<double> weight = vector_of(p.weight, 1), bias = vector_of(p.bias, 0);
  std::vector<double> mean = vector_of(p.mean, 0), variance = vector_of(p.variance, 0);
  const auto for_each = [&](int64_t c, auto&& f) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t l = 0; l < L; ++l) f((n * C + c) * L + l);
    }
  };
  const auto put = [](Expected& e, int64_t i, double value, double error, DType dtype) {
    e.put(i, value, numerics::stored_bound(value, error, dtype));
  };
  if (!p.backward()) {
    Expected y = Expected::of_size(x.size()), means = Expected::of_size(C), variances = means;
    for (int64_t c = 0; c < C; ++c) {
      double mean_error = 0, rstd_error = 2 * v;
      if (p.training) {
        double sum = 0, magnitude = 0, squares = 0;
        for_each(c, [&](int64_t i) { sum += x[i], magnitude += std::abs(x[i]); });
        mean[c] = sum / count;
        const double e = 2 * numerics::sum_bound(count + 1, v, magnitude / count);
        for_each(c, [&](int64_t i) { squares += (x[i] - mean[c]) * (x[i] - mean[c]); });
        variance[c] = squares / count;
        const double variance_error =
            2 * numerics::sum_bound(count + 4, v, variance[c] + e * e) + e * e;
        put(means, c, mean[c], e, statistics_type);
        put(variances, c, variance[c], variance_error, statistics_type);
        mean_error = means.bounds[c];
        rstd_error += variance_error / (variance[c] + p.eps);
      }
      const double scale = weight[c] / std::sqrt(variance[c] + p.eps);
      for_each(c, [&](int64_t i) {
        const double centred = x[i] - mean[c];
        const double error =
            std::abs(scale) * (mean_error + std::abs(centred) * (rstd_error + 4 * u)) +
            u * std::abs(bias[c]);
        put(y, i, centred * scale + bias[c], 2 * error, p.dtype());
      });
    }
    if (p.training) return {y, means, variances};
    return {y};
  }
  const std::vector<double> dy = p.dy.to_vector();
  Expected dx = Expected::of_size(x.size()), dweight = Expected::of_size(C), dbias = dweight;
  for (int64_t c = 0; c < C; ++c) {
    const double rstd = 1 / std::sqrt(variance[c] + p.eps);
    double sum = 0, sum_magnitude = 0, centred_sum = 0, centred_magnitude = 0;
    for_each(c, [&](int64_t i) {
      const double term = dy[i] * (x[i] - mean[c]);
      sum += dy[i], sum_magnitude += std::abs(dy[i]);
      centred_sum += term, centred_magnitude += std::abs(term);
    });
    const double sum_error = 2 * numerics::sum_bound(count + 3, v, sum_magnitude);
    const double centred_error = 2 * numerics::sum_bound(count + 3, v, centred_magnitude);
    put(dbias, c, sum, sum_error, statistics_type);
    put(dweight, c, centred_sum * rstd, (centred_error + 4 * v * std::abs(centred_sum)) * rstd,
        statistics_type);
    const double scale = weight[c] * rstd, per_element = p.training ? scale / count : 0;
    for_each(c, [&](int64_t i) {
      const double centred = x[i] - mean[c], slope = per_element * rstd * rstd;
      const double value = scale * dy[i] - per_element * sum - slope * centred * centred_sum;
      const double error = 4 * u * (std::abs(scale * dy[i]) + std::abs(per_element * sum)) +
                           5 * u * std::abs(slope * centred * centred_sum) +
                           std::abs(per_element) * sum_error +
                           std::abs(slope * centred) * centred_error;
      put(dx, i, value, error, p.dtype());
    });
  }
  std::vector<Expected> expected;
  if (p.dx.defined()) expected.push_back(dx);
  if (p.dweight.defined()) expected.push_back(dweight);
  if (p.dbias.defined()) expected.push_back(dbias);
  return expected;
}

}  // namespace weft::kernels
