// Plain loops in f64 (long double for f64). The bounds: a dot product of K terms with the bias and
// the old C, summed in any order with unit roundoff u, lies within gamma_(K+2) sum |a||b| + |bias|
// + |C| of the exact one (Higham, section 3.1; products of bf16 and f16 are exact in f32). Chunks
// of K and a bf16 C that is read back add one rounding each. Integers whose sums fit the
// accumulator are exact. oneDNN's bf16 instructions flush subnormal operands and partial sums: each
// term may lose 2^-126 times the other operand, and each partial sum 2^-126.
//
// Operands are rounded to TF32 by integer arithmetic of this file's own. Exact, fp8 and tensor-core
// products have their bits specified: those of tensor cores come from numerics' scalar model; the
// exact sum is taken in quadruple precision, whose error of K 2^-113 no case comes near.
//
// On a device, fp8 in ieee is what Hopper's tensor cores make of it, which keep 13 bits of a sum
// and are promoted to f32 every 128 of K: numerics/tensor_core_bounds.h. A subnormal operand counts
// there as the smallest normal number, whose exponent it is aligned by. Chains in f32 err less.
//
// gelu has relative error 10 u on top (kernels/simd/math_inl.h), on a device 2^-16 where C has 16
// bits (kernels/device/gelu.cuh), and carries the error e of its argument times at most max |gelu'|
// = 1.13; under dgelu the product is rounded to C's dtype first.
//
// Products of more than 2^24 multiply-adds are checked on a sample of rows; the others must be
// finite.
#include <cfloat>
#include <cmath>

#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "numerics/error_bounds.h"
#include "numerics/tensor_core_bounds.h"

namespace weft::kernels {
namespace {

constexpr double kMaxProducts = 0x1p24;
constexpr double kGeluSlope = 1.13;
constexpr double kGeluRoundings = 10;
constexpr double kNarrowGeluError = 0x1p-16;

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

/// The values of a tensor, with TF32's as TF32 has them; none of an undefined one.
std::vector<double> values_of(const Tensor& x, Tf32 rounding = Tf32::kOff) {
  if (!x.defined()) return {};
  std::vector<double> values = x.to_vector();
  if (x.dtype() != DType::f32 || rounding == Tf32::kOff) return values;
  for (double& value : values) {
    int exponent;
    const double significand = std::ldexp(std::frexp(value, &exponent), 11);
    const double kept =
        rounding == Tf32::kTruncate ? std::trunc(significand) : std::round(significand);
    value = std::ldexp(kept, exponent - 11);
  }
  return values;
}

// IEEE's binary128: on arm64 long double has that format, on x86-64 a type of the compiler's.
#if LDBL_MANT_DIG == 113
using Binary128 = long double;
#else
using Binary128 = __float128;
#endif

/// The value of a dtype nearest to x, ties to even.
double nearest(Binary128 x, DType dtype) {
  return visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto distance = [&](double y) { return x < y ? y - x : x - y; };
    const auto next = [&](double y, int steps) {
      if constexpr (std::is_same_v<T, float>) {
        return static_cast<double>(std::nextafter(static_cast<float>(y), steps * INFINITY));
      } else if constexpr (sizeof(T) == 2) {
        const T narrow = from_double<T>(y);
        const int away = (y > 0) == (steps > 0) ? 1 : -1;
        return to_double(T::from_bits(static_cast<uint16_t>(narrow.bits + away)));
      } else {
        return y;
      }
    };
    double best = numerics::round_to(static_cast<double>(x), dtype);
    if (!std::isfinite(best) || best == 0) return best;
    for (double other : {next(best, 1), next(best, -1)}) {
      const Binary128 gain = distance(best) - distance(other);
      // Of two equally near the even one is the one that halves of a step lead back to.
      const bool is_even = numerics::round_to((best + other) / 2, dtype) == other;
      if (gain > 0 || (gain == 0 && is_even)) best = other;
    }
    return best;
  });
}

/// Exact sums of 128 products, rounded to f32 and added there.
float fp8_sum(const double* a, const double* b, int64_t k, int64_t n) {
  float sum = 0;
  for (int64_t first = 0; first < k; first += kFp8PromotionInterval) {
    long double block = 0;
    for (int64_t l = first; l < std::min(k, first + kFp8PromotionInterval); ++l) {
      block += static_cast<long double>(a[l]) * b[l * n];
    }
    sum += static_cast<float>(block);
  }
  return sum;
}

/// The scalar model's sum of a[k] b[k, 0]; of fp8 operands promoted every 128 of k where that
/// helps.
float tensor_core_sum(const GemmProblem& p, const double* a, const double* b) {
  const int64_t k = p.k(), n = p.n();
  const bool is_fp8 = itemsize(p.dtype()) == 1;
  numerics::TensorCoreModel model = numerics::tensor_core_model(
      name(p.numerics.accumulation), p.dtype() == DType::f32 ? DType::tf32 : p.dtype());
  if (p.a.dtype() != p.b.dtype()) model.input = DType::f16;  // holds e4m3 and e5m2
  const std::vector<float> row(a, a + k);
  std::vector<float> column(k);
  for (int64_t l = 0; l < k; ++l) column[l] = static_cast<float>(b[l * n]);
  const bool promotes = is_fp8 && model.split_block == 0;
  const int64_t interval = promotes ? kFp8PromotionInterval : std::max<int64_t>(1, k);
  float sum = 0;
  for (int64_t first = 0; first < k; first += interval) {
    const size_t count = std::min(interval, k - first);
    const float block = numerics::tensor_core_dot(model, std::span(row).subspan(first, count),
                                                  std::span(column).subspan(first, count), 0);
    sum = promotes ? sum + block : block;
  }
  return sum;
}

/// An element of C (aux under gelu) whose bits the arithmetic specifies.
double specified_element(const GemmProblem& p, const double* a, const double* b, double bias,
                         double old) {
  const int64_t k = p.k(), n = p.n();
  const auto scale = static_cast<float>(p.scale);
  if (p.numerics.accumulation == Accumulation::kExact) {
    Binary128 sum = static_cast<Binary128>(bias) + old;
    for (int64_t l = 0; l < k; ++l) {
      sum += static_cast<Binary128>(a[l]) * static_cast<double>(scale) * b[l * n];
    }
    return nearest(sum, p.c.dtype());
  }
  const bool is_modelled = is_gpu(p.numerics.accumulation);
  float value = (is_modelled ? tensor_core_sum(p, a, b) : fp8_sum(a, b, k, n)) * scale;
  if (p.bias.defined()) value += static_cast<float>(bias);
  if (p.accumulate || p.residual.defined()) value += static_cast<float>(old);
  return numerics::round_to(value, p.c.dtype());
}

/// How far a device's fp8 result may lie from `value`, the CPU's. added: the magnitude of bias and
/// old C.
double fp8_device_error(const GemmProblem& p, const double* a, const double* b, double added,
                        double value) {
  const numerics::TensorCoreModel model = numerics::tensor_core_model("h100", DType::f8e4m3);
  const auto aligned = [](double x, DType dtype) {
    const double smallest = dtype == DType::f8e4m3 ? 0x1p-6 : 0x1p-14;
    return x == 0 ? 0 : std::max(std::abs(x), smallest);
  };
  const int64_t k = p.k(), n = p.n();
  double magnitude = 0;
  bool is_integral = true;
  for (int64_t l = 0; l < k; ++l) {
    const double x = a[l], y = b[l * n];
    magnitude += aligned(x, p.a.dtype()) * aligned(y, p.b.dtype());
    is_integral = is_integral && x == std::floor(x) && y == std::floor(y);
  }
  if (is_integral && magnitude <= std::ldexp(1.0, model.step.output_bits)) return 0;
  if (!std::isfinite(value)) return 0;
  const auto interval = static_cast<double>(kFp8PromotionInterval);
  const auto terms = static_cast<double>(k);
  // The device's sum; then on both sides additions of the promoted sums, scale, bias and old C, all
  // in f32, and one rounding to C's dtype.
  const double scale = std::abs(static_cast<float>(p.scale));
  const double sum = numerics::tensor_core_dot_bound(model, terms, magnitude, interval) * scale;
  const double additions = numerics::gamma(std::ceil(terms / interval) + 4, 0x1p-24);
  const double error = sum + 2 * additions * (magnitude * scale + sum + added);
  return error + 2 * numerics::rounding_error(std::abs(value) + error, p.c.dtype());
}

/// A sum with what its bound needs.
template <class T>
struct Sum {
  T value = 0, magnitude = 0;
  double flushed = 0;
  bool is_integral = true;

  void add(double x, double y) {
    const T product = static_cast<T>(x) * y;
    value += product;
    magnitude += std::abs(product);
    flushed += std::abs(x) + std::abs(y);
    is_integral = is_integral && x == std::floor(x) && y == std::floor(y);
  }
};

/// Unit roundoff of the arithmetic.
double roundoff(const GemmProblem& p) { return p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24; }

/// One element before the epilogue, and how far a variant's may lie from it: any, and a device's.
struct Element {
  double value = 0, error = 0, device_error = 0;
};

/// The element whose products with a[0..k) and b[0..k) (n apart) are summed in `sum`.
template <class T>
Element finished(const GemmProblem& p, Sum<T> sum, const double* a, const double* b, double bias,
                 double added) {
  const double u = roundoff(p), max_integer = 1 / u;
  const DType dtype = p.c.dtype();
  const GemmArithmetic arithmetic = gemm_arithmetic(p.dtype(), p.numerics);
  if (p.bias.defined()) sum.add(bias, 1);
  if (added != 0) sum.add(added, 1);
  Element element{.value = static_cast<double>(sum.value)};
  const auto magnitude = static_cast<double>(sum.magnitude), terms = static_cast<double>(p.k());
  if (arithmetic != GemmArithmetic::kIeee && arithmetic != GemmArithmetic::kTf32) {
    element.value = specified_element(p, a, b, bias, added);
  } else if (sum.is_integral && magnitude <= max_integer) {
    element.value = numerics::round_to(element.value, dtype);
  } else {
    element.error = numerics::gamma(terms + 3, u) * magnitude;
    if (p.dtype() == DType::bf16) element.error += 0x1p-126 * (sum.flushed + terms);
    element.error += numerics::rounding_error(std::abs(element.value) + element.error, dtype);
  }
  if (!std::isfinite(element.value)) element.error = 0;
  if (arithmetic == GemmArithmetic::kFp8) {
    element.device_error =
        fp8_device_error(p, a, b, std::abs(bias) + std::abs(added), element.value);
  }
  return element;
}

/// A B + bias + old C or residual. What is not computed, of large products, is 0 with an infinite
/// bound.
template <class T>
Expected linear(const GemmProblem& p) {
  const std::vector<double> operand_a = values_of(p.a, p.numerics.tf32);
  const std::vector<double> operand_b = values_of(p.b, p.numerics.tf32);
  const std::vector<double> biases = values_of(p.bias);
  const std::vector<double> olds = values_of(p.accumulate ? p.c : p.residual);
  const int64_t m = p.m(), n = p.n(), k = p.k(), elements = p.c.numel();
  const int64_t rows = elements == 0 ? 0 : elements / n;
  const auto step = static_cast<int64_t>(
      std::max(1.0, std::ceil(static_cast<double>(elements) * k / kMaxProducts)));
  Expected result{std::vector<double>(elements), std::vector<double>(elements, INFINITY)};
  const bool has_device_bounds = gemm_is<GemmArithmetic::kFp8>(p);
  if (has_device_bounds) result.device_bounds = result.bounds;
  for (int64_t row = 0; row < rows; row += step) {
    const double* a = operand_a.data() + row * k;
    const double* b = operand_b.data() + row / m * k * n;
    std::vector<Sum<T>> sums(n);
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) sums[j].add(a[l], b[l * n + j]);
    }
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = row * n + j;
      const double bias = biases.empty() ? 0 : biases[j];
      const double added = olds.empty() ? 0 : olds[at];
      const Element element = finished(p, sums[j], a, k > 0 ? b + j : b, bias, added);
      result.values[at] = element.value;
      result.bounds[at] = element.error;
      if (has_device_bounds) result.device_bounds[at] = element.device_error;
    }
  }
  return result;
}

/// The epilogue's output: gelu of x, or under dgelu x gelu'(aux), for what is computed of x.
Expected activated(const GemmProblem& p, const Expected& x) {
  const bool is_gelu = p.epilogue == Epilogue::kGelu;
  const std::vector<double> arguments = is_gelu ? x.values : values_of(p.aux);
  const double own_error = kGeluRoundings * roundoff(p);
  const double device_error = p.c.itemsize() == 2 ? kNarrowGeluError : own_error;
  Expected y = x;
  if (y.device_bounds.empty() && device_error > own_error) y.device_bounds = x.bounds;
  for (const bool on_device : {false, true}) {
    std::vector<double>& bounds = on_device ? y.device_bounds : y.bounds;
    const double gelu_error = on_device ? device_error : own_error;
    for (size_t i = 0; i < bounds.size(); ++i) {
      const double error = bounds[i], product = x.values[i];
      if (std::isinf(error)) continue;
      const double t = arguments[i], below = normal_distribution(t), density = normal_density(t);
      double result_error;
      if (is_gelu) {
        y.values[i] = t * below;
        result_error = kGeluSlope * error + gelu_error * std::abs(t * below);
      } else {
        const double scale = below + std::abs(t) * density;  // bounds the slope
        y.values[i] = product * (below + t * density);
        result_error = error * scale + (std::abs(product) + error) * gelu_error * scale;
      }
      bounds[i] = result_error +
                  numerics::rounding_error(std::abs(y.values[i]) + result_error, p.c.dtype());
    }
  }
  return y;
}

/// The bias gradient and its bound: what C's elements may be off, and gamma of the summation.
Expected column_sums(const Expected& c, int64_t n, double u) {
  Expected sums{std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> magnitudes(n);
  for (size_t i = 0; i < c.values.size(); ++i) {
    const size_t column = i % static_cast<size_t>(n);
    sums.values[column] += c.values[i];
    sums.bounds[column] += c.bounds[i];
    magnitudes[column] += std::abs(c.values[i]) + c.bounds[i];
  }
  const double gamma = numerics::gamma(static_cast<double>(c.values.size()) / n, u);
  for (int64_t j = 0; j < n; ++j) sums.bounds[j] += gamma * magnitudes[j];
  return sums;
}

}  // namespace

std::vector<Expected> gemm_reference(const GemmProblem& p) {
  const Expected x = p.dtype() == DType::f64 ? linear<long double>(p) : linear<double>(p);
  if (p.epilogue == Epilogue::kNone) return {x};
  const Expected y = activated(p, x);
  if (p.epilogue == Epilogue::kGelu) return {y, x};
  if (!p.bias_gradient.defined()) return {y};
  Expected sums = column_sums(y, p.n(), roundoff(p));
  if (!y.device_bounds.empty()) {
    sums.device_bounds = column_sums({y.values, y.device_bounds}, p.n(), roundoff(p)).bounds;
  }
  return {y, sums};
}

}  // namespace weft::kernels
