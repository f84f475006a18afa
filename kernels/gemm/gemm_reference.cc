// Plain loops in f64 (long double for f64). The bounds: a dot product of K terms with the bias and
// the old C, summed in any order with unit roundoff u, lies within gamma_(K+2) sum |a||b| + |bias|
// + |C| of the exact one (Higham, section 3.1; products of bf16 and f16 are exact in f32). Chunks
// of K and a bf16 C that is read back add one rounding each. Integers whose sums fit the
// accumulator are exact: the bound is 0.
//
// oneDNN's bf16 instructions flush subnormal operands and partial sums: each term may lose 2^-126
// times the other operand, and each partial sum 2^-126.
//
// gelu has relative error 10 u on top (kernels/simd/math_inl.h), and carries the error e of its
// argument times at most max |gelu'| = 1.13; under dgelu the product is rounded to C's dtype first.
//
// Products of more than 2^24 multiply-adds are checked on a sample of rows; the others must be
// finite.
#include <cmath>

#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "numerics/error_bounds.h"

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

template <class T>
std::vector<Expected> reference(const GemmProblem& p) {
  const int64_t m = p.m(), n = p.n(), k = p.k();
  const std::vector<double> a = p.a.to_vector(), b = p.b.to_vector();
  const std::vector<double> c = p.accumulate ? p.c.to_vector() : std::vector<double>();
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
      if (!c.empty()) sum.add(c[at], 1);
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
      if (!std::isfinite(value)) error = 0;
      const auto put = [&](double x, double bound) {
        result.values[at] = x;
        result.bounds[at] = bound + numerics::rounding_error(std::abs(x) + bound, dtype);
      };
      switch (p.epilogue) {
        case Epilogue::none:
          result.values[at] = value;
          result.bounds[at] = error;
          break;
        case Epilogue::gelu:
          argument.values[at] = value;
          argument.bounds[at] = error;
          put(gelu(value), kGeluSlope * error + kGeluRoundings * u * std::abs(gelu(value)));
          break;
        case Epilogue::dgelu: {
          const double x = aux[at];
          const double slope = normal_distribution(x) + x * normal_density(x);
          const double scale = normal_distribution(x) + std::abs(x) * normal_density(x);
          put(value * slope,
              error * scale + (std::abs(value) + error) * kGeluRoundings * u * scale);
          break;
        }
      }
    }
  }
  if (p.epilogue == Epilogue::gelu) return {result, argument};
  return {result};
}

}  // namespace

std::vector<Expected> gemm_reference(const GemmProblem& p) {
  return p.dtype() == DType::f64 ? reference<long double>(p) : reference<double>(p);
}

}  // namespace weft::kernels
