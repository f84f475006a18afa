// Plain loops over the definitions in the header, with long double where the variant has double.
// The bound: a few units of f64 roundoff in the result, then the rounding to its dtype; uniform,
// bernoulli and integers are exact in f64 but for that rounding.
#include <cmath>
#include <numbers>

#include "core/philox.h"
#include "kernels/random/random.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

long double unit(const RandomProblem& p, int64_t i) {
  const uint64_t k = static_cast<uint64_t>(i);
  return (philox4x32(p.seed, p.stream, p.offset + k / 4)[k % 4] + 0.5L) * 0x1p-32L;
}

long double cdf(long double x) { return 0.5L * erfcl(-x / std::numbers::sqrt2_v<long double>); }

/// The x with cdf(x) = probability, by bisection to the last bit.
long double quantile(long double probability) {
  long double low = -40, high = 40;
  for (int step = 0; step < 100; ++step) {
    const long double middle = (low + high) / 2;
    (cdf(middle) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

std::vector<Expected> random_reference(const RandomProblem& p) {
  Expected expected;
  for (int64_t i = 0; i < p.y.numel(); ++i) {
    long double value = 0;
    double error = 0;
    switch (p.distribution) {
      case Distribution::kUniform:
        value = p.low + (static_cast<long double>(p.high) - p.low) * unit(p, i);
        error = 4 * 0x1p-53 * (std::abs(p.low) + std::abs(p.high));
        break;
      case Distribution::kNormal: {
        const long double radius = std::sqrt(-2 * std::log(unit(p, i - i % 2)));
        const long double angle = 2 * std::numbers::pi_v<long double> * unit(p, i - i % 2 + 1);
        value = p.mean + p.std * radius * (i % 2 ? std::sin(angle) : std::cos(angle));
        error = 32 * 0x1p-53 * (std::abs(p.mean) + p.std * static_cast<double>(radius));
        break;
      }
      case Distribution::kTruncNormal: {
        const long double below = cdf((p.low - p.mean) / static_cast<long double>(p.std));
        const long double above = cdf((p.high - p.mean) / static_cast<long double>(p.std));
        value = p.mean + p.std * quantile(below + (above - below) * unit(p, i));
        value = std::clamp<long double>(value, p.low, p.high);
        // The quantile's own relative accuracy is 1e-15 (Wichura); near the ends it magnifies the
        // rounding of the probability by 1 / density.
        error = 1e-13 * (std::abs(p.mean) + p.std);
        break;
      }
      case Distribution::kBernoulli:
        value = unit(p, i) < p.p ? 1 : 0;
        break;
      case Distribution::kIntegers:
        value = p.low + std::floor(unit(p, i) * (p.high - p.low));
        break;
    }
    const bool rounds = is_floating(p.dtype()) && p.distribution <= Distribution::kTruncNormal;
    double bound = 0;
    if (rounds) {
      const double magnitude = std::abs(static_cast<double>(value)) + error;
      bound = error + numerics::rounding_error(magnitude, p.dtype());
      // Where rounding to nearest would reach `high` the result is the number below it.
      if (p.distribution == Distribution::kUniform && value + bound >= p.high) bound *= 3;
    }
    expected.add(static_cast<double>(value), bound);
  }
  return {expected};
}

}  // namespace weft::kernels
