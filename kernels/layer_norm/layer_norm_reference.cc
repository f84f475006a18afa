// Plain loops in f64, but for s itself, which is the f32 (f64) sum rounded to its dtype.
//
// Bounds, with u the unit roundoff of the arithmetic and N terms in a row: variants add in at least
// four parts, so that no term passes more than K = min(N, N / 4 + 10) additions, and the mean is
// off by at most e = gamma_{K+1} mean|s|. Since sum((s - m)^2) / N = variance + (m - mean)^2 for
// any m, the variance is off by the factor gamma_{K+4} and by e^2, and rstd by half of that and
// three roundings. Sums of backward are bounded by gamma times the sums of magnitudes
// (numerics/error_bounds.h).
#include <algorithm>
#include <cmath>

#include "kernels/layer_norm/layer_norm.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

using Values = std::vector<double>;

Values values_or(const Tensor& t, int64_t n, double otherwise) {
  return t.defined() ? t.to_vector() : Values(n, otherwise);
}

std::vector<Expected> forward(const LayerNormProblem& p, int64_t n, int64_t rows, double u) {
  using numerics::gamma;
  Values s = p.x.to_vector();
  std::vector<Expected> result;
  if (p.residual.defined()) {
    const Values residual = p.residual.to_vector();
    for (size_t i = 0; i < s.size(); ++i) s[i] += residual[i];
    for (double& x : s) {
      x = numerics::round_to(p.dtype() == DType::f64 ? x : static_cast<float>(x), p.sum.dtype());
    }
    result.push_back({s, Values(s.size())});
  }
  const Values scale = values_or(p.gamma, n, 1), shift = values_or(p.beta, n, 0);
  Expected y = Expected::of_size(s.size()), means = Expected::of_size(rows), rstds = means;
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = s.data() + r * n;
    double mean = 0, magnitude = 0, variance = 0;
    for (int64_t i = 0; i < n; ++i) {
      mean += row[i] / n;
      magnitude += std::abs(row[i]) / n;
    }
    for (int64_t i = 0; i < n; ++i) variance += (row[i] - mean) * (row[i] - mean) / n;
    const double rstd = 1 / std::sqrt(variance + p.eps);
    const double additions = std::min<double>(n, n / 4.0 + 10);
    const double mean_error = gamma(additions + 1, u) * magnitude;
    const double rstd_relative =
        gamma(additions + 8, u) + 0.5 * mean_error * mean_error / (variance + p.eps);
    means.put(r, mean, mean_error);
    rstds.put(r, rstd, rstd * rstd_relative);
    for (int64_t i = 0; i < n; ++i) {
      const double h = (row[i] - mean) * rstd;
      const double h_error =
          mean_error * rstd * (1 + rstd_relative) + std::abs(h) * (rstd_relative + 3 * u);
      const double scaled = h * scale[i], value = scaled + shift[i];
      const double error =
          h_error * std::abs(scale[i]) + 2 * u * (std::abs(scaled) + std::abs(shift[i]));
      y.put(r * n + i, value, numerics::stored_bound(value, error, p.y.dtype()));
    }
  }
  result.push_back(y);
  if (p.mean.defined()) {
    result.push_back(means);
    result.push_back(rstds);
  }
  return result;
}

std::vector<Expected> backward(const LayerNormProblem& p, int64_t n, int64_t rows, double u) {
  using numerics::gamma;
  const Values s = p.x.to_vector(), dy = p.dy.to_vector(), scale = values_or(p.gamma, n, 1);
  const Values mean = p.mean.to_vector(), rstd = p.rstd.to_vector();
  const Values ds = values_or(p.ds, s.size(), 0);
  Values dgamma(n), dgamma_magnitude(n), dbeta(n), dbeta_magnitude(n), dx(s.size()), error(dx);
  for (int64_t r = 0; r < rows; ++r) {
    double sum_g = 0, magnitude_g = 0, sum_gh = 0, magnitude_gh = 0;
    const auto h = [&](int64_t i) { return (s[r * n + i] - mean[r]) * rstd[r]; };
    for (int64_t i = 0; i < n; ++i) {
      const double d = dy[r * n + i], g = d * scale[i];
      sum_g += g / n;
      magnitude_g += std::abs(g) / n;
      sum_gh += g * h(i) / n;
      magnitude_gh += std::abs(g * h(i)) / n;
      dgamma[i] += d * h(i);
      dgamma_magnitude[i] += std::abs(d * h(i));
      dbeta[i] += d;
      dbeta_magnitude[i] += std::abs(d);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = r * n + i;
      const double g = dy[at] * scale[i];
      dx[at] = rstd[r] * (g - sum_g - h(i) * sum_gh) + ds[at];
      const double terms = std::abs(g) + magnitude_g + std::abs(h(i)) * magnitude_gh;
      error[at] = gamma(n + 12.0, u) * rstd[r] * terms + 2 * u * std::abs(ds[at]);
    }
  }
  std::vector<Expected> result;
  const auto add = [&](const Tensor& t, const Values& values, const Values& errors, double factor) {
    if (!t.defined()) return;
    Expected& output = result.emplace_back();
    for (size_t i = 0; i < values.size(); ++i) {
      output.add(values[i], numerics::stored_bound(values[i], factor * errors[i], t.dtype()));
    }
  };
  add(p.dx, dx, error, 1);
  add(p.dresidual, dx, error, 1);
  add(p.dgamma, dgamma, dgamma_magnitude, gamma(rows + 4.0, u));
  add(p.dbeta, dbeta, dbeta_magnitude, gamma(rows + 1.0, u));
  return result;
}

}  // namespace

std::vector<Expected> layer_norm_reference(const LayerNormProblem& p) {
  const int64_t n = p.x.shape().back();
  const int64_t rows = n == 0 ? 0 : p.x.numel() / n;
  // In f64 the reference errs as much as the variant: twice the unit roundoff.
  const double u = p.dtype() == DType::f64 ? 0x1p-52 : 0x1p-24;
  return p.backward() ? backward(p, n, rows, u) : forward(p, n, rows, u);
}

}  // namespace weft::kernels
