// Plain loops in f64 (i64 for integers) over all elements.
//
// Bounds, with u the unit roundoff of f32 (f64 for f64), A the sum of |x| and n its terms: no
// element of a sum of reduce.h passes through more than 24 additions in f32, 16 of an accumulator
// and 8 that join the accumulators, nor n in f64, so a sum is off by e_s = gamma_24 A +
// gamma'_n A; for f64 it is gamma_2n A, the reference's own error among it. With c the mean as
// rounded to f32, var computes sum((x - c)^2) - n (mean - c)^2, where the first is off by gamma_28
// of itself and the second by what e_s / n makes of it. Products are in f64. Everything else is
// exact, and so are sums of integers below 2^24 (numerics/error_bounds.h).
#include <cmath>

#include "kernels/reduce/reduce.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

/// The elements behind each element of y, in row-major order.
std::vector<std::vector<double>> gathered(const ReduceProblem& p) {
  std::vector<std::vector<double>> groups(p.y.numel());
  const Strides y_strides = contiguous_strides(p.y.shape());
  Strides strides = Strides::filled(p.x.dim(), 0);
  for (int d = 0; d < p.x.dim(); ++d) strides[d] = p.y.shape()[d] == 1 ? 0 : y_strides[d];
  const std::vector<double> x = p.x.to_vector();
  auto next = x.begin();
  for_each_offset(p.x.shape(), strides, [&](int64_t group) { groups[group].push_back(*next++); });
  return groups;
}

struct Result {
  double value, error;  // the error before y is rounded
};

Result reduce_group(const ReduceProblem& p, const std::vector<double>& group) {
  using numerics::gamma;
  const double n = static_cast<double>(group.size());
  const bool wide = p.x.dtype() == DType::f64;
  const double u = wide ? 0x1p-53 : 0x1p-24;
  double sum = 0, magnitude = 0, product = 1, nonzero = 0, squares = 0;
  bool whole = true;
  for (double x : group) {
    sum += x;
    magnitude += std::abs(x);
    product *= x;
    squares += x * x;
    nonzero += x != 0;
    whole &= x == std::floor(x);
  }
  const bool exact = !is_floating(p.x.dtype()) || (whole && magnitude < 0x1p24);
  const double sum_error =
      exact ? 0 : magnitude * (wide ? gamma(2 * n, u) : gamma(24, u) + gamma(n, 0x1p-53));
  const double mean = sum / n;
  switch (p.reduction) {
    case Reduction::kSum:
      return {sum, sum_error};
    case Reduction::kMean:
      return {mean, sum_error / n + std::abs(mean) * 0x1p-53};
    case Reduction::kProd:
      return {product, exact ? 0 : std::abs(product) * gamma(2 * n, 0x1p-53)};
    case Reduction::kSumSquares: {
      // A square is rounded once before it is added.
      const bool is_exact = !is_floating(p.x.dtype()) || (whole && squares < 0x1p24);
      const double terms = wide ? gamma(2 * n + 1, u) : gamma(25, u) + gamma(n, 0x1p-53);
      return {squares, is_exact ? 0 : squares * terms};
    }
    case Reduction::kVar: {
      squares = 0;
      for (double x : group) squares += (x - mean) * (x - mean);
      const double mean_error = sum_error / n, centre_error = mean_error + u * std::abs(mean);
      const double divisor = std::max(0.0, n - p.correction);
      const double first = gamma(28, u) + gamma(2 * n, 0x1p-53);
      const double error = first * (squares + n * centre_error * centre_error) +
                           n * mean_error * (2 * centre_error + mean_error);
      return {squares / divisor, divisor > 0 ? error / divisor : 0};
    }
    case Reduction::kAny:
      return {nonzero > 0 ? 1.0 : 0.0, 0};
    case Reduction::kAll:
      return {nonzero == n ? 1.0 : 0.0, 0};
    default:
      break;
  }
  WEFT_ASSERT(!group.empty());
  size_t best = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (std::isnan(group[i])) {
      best = i;
      break;
    }
    if (wants_largest(p.reduction) ? group[i] > group[best] : group[i] < group[best]) best = i;
  }
  return {gives_place(p.reduction) ? static_cast<double>(best) : group[best], 0};
}

}  // namespace

std::vector<Expected> reduce_reference(const ReduceProblem& p) {
  Expected expected;
  for (const std::vector<double>& group : gathered(p)) {
    const auto [value, error] = reduce_group(p, group);
    if (error == 0 || !std::isfinite(value)) {
      expected.add(is_floating(p.y.dtype()) ? numerics::round_to(value, p.y.dtype()) : value, 0);
    } else {
      expected.add(value, numerics::stored_bound(value, error, p.y.dtype()));
    }
  }
  return {expected};
}

}  // namespace weft::kernels
