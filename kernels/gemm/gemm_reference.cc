// Plain loops in f64 (long double for f64). The bounds: a dot product of K terms with the bias and
// the old C, summed in any order with unit roundoff u, lies within gamma_(K+2) sum |a||b| + |bias|
// + |C| of the exact one (Higham, section 3.1; products of bf16 and f16 are exact in f32). Chunks
// of K and a bf16 C that is read back add one rounding each. Integers whose sums fit the
// accumulator are exact: the bound is 0.
//
// oneDNN's bf16 instructions flush subnormal operands and partial sums: each term may lose 2^-126
// times the other operand, and each partial sum 2^-126.
//
// TF32 operands are rounded here by integer arithmetic of this file's own; then the bounds are
// those of f32. Exact, fp8 and tensor-core products have their bits specified: the bound is 0.
// Those of tensor cores come from numerics' scalar model; the exact sum is taken in quadruple
// precision, whose error of K 2^-113 no case comes near, and its nearest neighbour found by
// comparing distances.
//
// On a device, fp8 in ieee is what Hopper's tensor cores make of it, which keep 13 bits of a sum
// and are promoted to f32 every 128 of K: numerics/tensor_core_bounds.h. A subnormal operand counts
// there as the smallest normal number, whose exponent it is aligned by. Chains in f32 err less.
// Integers whose magnitudes add up to what 13 bits hold are exact.
//
// gelu has relative error 10 u on top (kernels/simd/math_inl.h), and carries the error e of its
// argument times at most max |gelu'| = 1.13; under dgelu the product is rounded to C's dtype first.
//
// The bias gradient sums C as rounded: what its elements may be off adds up, and gamma_M bounds the
// summation of M rows in any order.
//
// Products of more than 2^24 multiply-adds are checked on a sample of rows; the others must be
// finite.
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

double round_to(double x, DType dtype) {
  return visit_dtype(
      dtype, [&](auto tag) { return to_double(from_double<typename decltype(tag)::type>(x)); });
}

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu(double x) { return x * normal_distribution(x); }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

/// p.a's or p.b's values, with TF32's operands as TF32 has them.
std::vector<double> operand_values(const Tensor& x, Tf32 rounding) {
  std::vector<double> values = x.to_vector();
  if (x.dtype() != DType::f32 || rounding == Tf32::off) return values;
  for (double& value : values) {
    int exponent;
    const double significand = std::ldexp(std::frexp(value, &exponent), 11);
    const double kept =
        rounding == Tf32::truncate ? std::trunc(significand) : std::round(significand);
    value = std::ldexp(kept, exponent - 11);
  }
  return values;
}

/// The value of a dtype nearest to x, ties to even.
double nearest(__float128 x, DType dtype) {
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
    double best = round_to(static_cast<double>(x), dtype);
    if (!std::isfinite(best) || best == 0) return best;
    for (double other : {next(best, 1), next(best, -1)}) {
      const __float128 gain = distance(best) - distance(other);
      // Of two equally near the even one is the one that halves of a step lead back to.
      const bool is_even = round_to((best + other) / 2, dtype) == other;
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
  if (p.numerics.accumulation == Accumulation::exact) {
    __float128 sum = static_cast<__float128>(bias) + old;
    for (int64_t l = 0; l < k; ++l) {
      sum += static_cast<__float128>(a[l]) * static_cast<double>(scale) * b[l * n];
    }
    return nearest(sum, p.c.dtype());
  }
  const bool is_modelled = is_gpu(p.numerics.accumulation);
  float value = (is_modelled ? tensor_core_sum(p, a, b) : fp8_sum(a, b, k, n)) * scale;
  if (p.bias.defined()) value += static_cast<float>(bias);
  if (p.accumulate || p.residual.defined()) value += static_cast<float>(old);
  return round_to(value, p.c.dtype());
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

template <class T>
std::vector<Expected> reference(const GemmProblem& p) {
  const int64_t m = p.m(), n = p.n(), k = p.k();
  const GemmArithmetic arithmetic = gemm_arithmetic(p.dtype(), p.numerics);
  const bool is_specified =
      arithmetic != GemmArithmetic::ieee && arithmetic != GemmArithmetic::tf32;
  const std::vector<double> a = operand_values(p.a, p.numerics.tf32);
  const std::vector<double> b = operand_values(p.b, p.numerics.tf32);
  const std::vector<double> c = p.accumulate ? p.c.to_vector() : std::vector<double>();
  const std::vector<double> residual =
      p.residual.defined() ? p.residual.to_vector() : std::vector<double>();
  const std::vector<double> bias = p.bias.defined() ? p.bias.to_vector() : std::vector<double>();
  const std::vector<double> aux =
      p.epilogue == Epilogue::dgelu ? p.aux.to_vector() : std::vector<double>();
  const double u = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double max_integer = 1 / u;
  const DType dtype = p.c.dtype();
  const int64_t rows = p.c.numel() == 0 ? 0 : p.c.numel() / n;
  const auto step = static_cast<int64_t>(
      std::max(1.0, std::ceil(static_cast<double>(p.c.numel()) * k / kMaxProducts)));
  Expected result{std::vector<double>(p.c.numel()), std::vector<double>(p.c.numel(), INFINITY)};
  // Where a device may be further off: fp8.
  const bool has_device_bounds = arithmetic == GemmArithmetic::fp8;
  if (has_device_bounds) result.device_bounds = result.bounds;
  Expected argument = result;
  for (int64_t row = 0; row < rows; row += step) {
    const double* a_row = a.data() + row * k;
    const double* b_matrix = b.data() + row / m * k * n;
    std::vector<Sum<T>> sums(n);
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) sums[j].add(a_row[l], b_matrix[l * n + j]);
    }
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = row * n + j;
      Sum<T>& sum = sums[j];
      if (!bias.empty()) sum.add(bias[j], 1);
      // What is added at the end: the old C, or the residual.
      const double old = !c.empty() ? c[at] : !residual.empty() ? residual[at] : 0;
      if (old != 0) sum.add(old, 1);
      double value = static_cast<double>(sum.value);
      const auto magnitude = static_cast<double>(sum.magnitude);
      double error = numerics::gamma(static_cast<double>(k) + 3, u) * magnitude;
      if (p.dtype() == DType::bf16) error += 0x1p-126 * (sum.flushed + static_cast<double>(k));
      const bool is_exact = sum.is_integral && magnitude <= max_integer;
      const double rounding = numerics::rounding_error(std::abs(value) + error, dtype);
      if (is_exact) {
        value = round_to(value, dtype);
        error = 0;
      } else {
        error += rounding;
      }
      if (is_specified) {
        value = specified_element(p, a_row, b_matrix + j, bias.empty() ? 0 : bias[j], old);
        error = 0;
      }
      if (!std::isfinite(value)) error = 0;
      const auto put = [&](double own_error, std::vector<double>& bounds,
                           std::vector<double>& argument_bounds) {
        const auto put_rounded = [&](double x, double bound) {
          result.values[at] = x;
          bounds[at] = bound + numerics::rounding_error(std::abs(x) + bound, dtype);
        };
        switch (p.epilogue) {
          case Epilogue::none:
            result.values[at] = value;
            bounds[at] = own_error;
            break;
          case Epilogue::gelu:
            argument.values[at] = value;
            argument_bounds[at] = own_error;
            put_rounded(gelu(value),
                        kGeluSlope * own_error + kGeluRoundings * u * std::abs(gelu(value)));
            break;
          case Epilogue::dgelu: {
            const double x = aux[at];
            const double slope = normal_distribution(x) + x * normal_density(x);
            const double scale = normal_distribution(x) + std::abs(x) * normal_density(x);
            put_rounded(value * slope, own_error * scale + (std::abs(value) + own_error) *
                                                               kGeluRoundings * u * scale);
            break;
          }
        }
      };
      put(error, result.bounds, argument.bounds);
      if (has_device_bounds) {
        const double added = (bias.empty() ? 0 : std::abs(bias[j])) + std::abs(old);
        const double device_error = fp8_device_error(p, a_row, b_matrix + j, added, value);
        put(device_error, result.device_bounds, argument.device_bounds);
      }
    }
  }
  if (p.epilogue == Epilogue::gelu) return {result, argument};
  if (p.bias_gradient.defined()) {
    Expected sums = column_sums(result, n, u);
    if (has_device_bounds) {
      sums.device_bounds = column_sums({result.values, result.device_bounds}, n, u).bounds;
    }
    return {result, sums};
  }
  return {result};
}

}  // namespace

std::vector<Expected> gemm_reference(const GemmProblem& p) {
  return p.dtype() == DType::f64 ? reference<long double>(p) : reference<double>(p);
}

}  // namespace weft::kernels
