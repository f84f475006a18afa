// Element by element in f64, in parallel chunks. Initialising a ViT-B/16 takes about a second;
// nothing in a training step draws through here.
#include <cmath>
#include <numbers>
#include <span>

#include "core/parallel.h"
#include "core/philox.h"
#include "kernels/copy/copy.h"
#include "kernels/random/random.h"

namespace weft::kernels {
namespace {

double unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }

double cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// The standard normal quantile: Wichura, "Algorithm AS 241: The Percentage Points of the Normal
/// Distribution", Applied Statistics 37, 1988, routine PPND16; relative accuracy about 1e-16.
double quantile(double p) {
  const auto polynomial = [](double r, std::span<const double> c) {
    double sum = c.back();
    for (size_t i = c.size() - 1; i > 0; --i) sum = sum * r + c[i - 1];
    return sum;
  };
  // The denominators begin with 1.
  const auto ratio = [&](double r, std::span<const double> a, std::span<const double> b) {
    return polynomial(r, a) / (polynomial(r, b) * r + 1);
  };
  static constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                  1.9715909503065514427e3, 1.3731693765509461125e4,
                                  4.5921953931549871457e4, 6.7265770927008700853e4,
                                  3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double kB[] = {4.2313330701600911252e1, 6.8718700749205790830e2,
                                  5.3941960214247511077e3, 2.1213794301586595867e4,
                                  3.9307895800092710610e4, 2.8729085735721942674e4,
                                  5.2264952788528545610e3};
  static constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                  5.76949722146069140550e0,  3.64784832476320460504e0,
                                  1.27045825245236838258e0,  2.41780725177450611770e-1,
                                  2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[] = {2.05319162663775882187e0,  1.67638483018380384940e0,
                                  6.89767334985100004550e-1, 1.48103976427480074590e-1,
                                  1.51986665636164571966e-2, 5.47593808499534494600e-4,
                                  1.05075007164441684324e-9};
  static constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                  1.78482653991729133580e0,  2.96560571828504891230e-1,
                                  2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                  2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[] = {5.99832206555887937690e-1, 1.36929880922735805310e-1,
                                  1.48753612908506148525e-2, 7.86869131145613259100e-4,
                                  1.84631831751005468180e-5, 1.42151175831644588870e-7,
                                  2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) return q * ratio(0.180625 - q * q, kA, kB);
  const double r = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? ratio(r - 1.6, kC, kD) : ratio(r - 5, kE, kF);
  return q < 0 ? -x : x;
}

/// The four elements of a block.
struct Sampler {
  const RandomProblem& p;
  const double below = cdf((p.low - p.mean) / p.std), above = cdf((p.high - p.mean) / p.std);

  void draw(uint64_t block, double (&out)[4]) const {
    const auto words = philox4x32(p.seed, p.stream, p.offset + block);
    if (p.distribution == Distribution::kNormal) {
      for (int i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log(unit(words[i])));
        const double angle = 2 * std::numbers::pi * unit(words[i + 1]);
        out[i] = p.mean + p.std * radius * std::cos(angle);
        out[i + 1] = p.mean + p.std * radius * std::sin(angle);
      }
      return;
    }
    for (int i = 0; i < 4; ++i) out[i] = from_unit(unit(words[i]));
  }

  double from_unit(double u) const {
    switch (p.distribution) {
      case Distribution::kUniform: {
        const double x = p.low + (p.high - p.low) * u;
        return x < p.high ? x : std::nextafter(p.high, p.low);
      }
      case Distribution::kTruncNormal:
        return std::clamp(p.mean + p.std * quantile(below + (above - below) * u), p.low, p.high);
      case Distribution::kBernoulli:
        return u < p.p ? 1 : 0;
      case Distribution::kIntegers:
        return p.low + std::floor(u * (p.high - p.low));
      default:
        WEFT_ASSERT(false);
    }
  }
};

}  // namespace

void random_cpu_philox(const RandomProblem& p) {
  const Tensor y = contiguous_output(p.y);
  const Sampler sampler{p};
  const int64_t n = y.numel();
  visit_dtype(y.dtype(), [&]<class T>(TypeTag<T>) {
    T* out = y.data<T>();
    const T high = from_double<T>(p.high);
    // A uniform number just below `high` may round up to it in a narrow dtype.
    const bool keeps_below = is_floating(y.dtype()) && p.distribution == Distribution::kUniform;
    parallel_for((n + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
      double values[4];
      for (int64_t block = begin; block < end; ++block) {
        sampler.draw(static_cast<uint64_t>(block), values);
        for (int64_t i = 0; i < std::min<int64_t>(4, n - 4 * block); ++i) {
          T value = from_double<T>(values[i]);
          if (keeps_below && to_double(value) >= to_double(high)) {
            // One unit in the last place towards zero, or away from it, lies below `high`.
            const double step = 2 * unit_roundoff(y.dtype()) * std::max(std::abs(p.high), 1e-30);
            value = from_double<T>(p.high - step);
          }
          out[4 * block + i] = value;
        }
      }
    });
  });
  finish_output(y, p.y);
}

}  // namespace weft::kernels
