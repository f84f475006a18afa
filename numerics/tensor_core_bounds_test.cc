// The bounds of tensor-core dot products: never violated, and reached to within a stated factor.
#include "numerics/tensor_core_bounds.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "core/philox.h"
#include "numerics/exact_sum.h"

using namespace weft;
using namespace weft::numerics;

namespace {

struct Case {
  const char* gpu;
  DType input, output;
};

constexpr Case kCases[] = {
    {"v100", DType::f16, DType::f32},    {"v100", DType::f16, DType::f16},
    {"a100", DType::f16, DType::f32},    {"a100", DType::bf16, DType::f32},
    {"a100", DType::tf32, DType::f32},   {"ada", DType::f8e4m3, DType::f32},
    {"ada", DType::f8e5m2, DType::f16},  {"h100", DType::f16, DType::f16},
    {"h100", DType::bf16, DType::f32},   {"h100", DType::tf32, DType::f32},
    {"h100", DType::f8e4m3, DType::f32}, {"h100", DType::f8e5m2, DType::f16},
    {"b200", DType::bf16, DType::f32},   {"b200", DType::f8e4m3, DType::f32},
};

float rounded(double x, DType dtype) {
  return visit_dtype(dtype, [&](auto tag) {
    return static_cast<float>(to_double(from_double<typename decltype(tag)::type>(x)));
  });
}

/// error / bound of one dot product.
double ratio(const TensorCoreModel& model, const std::vector<float>& a, const std::vector<float>& b,
             float c) {
  ExactSum sum, magnitude;
  sum.add(c);
  magnitude.add(std::abs(c));
  for (size_t i = 0; i < a.size(); ++i) {
    const double product = static_cast<double>(a[i]) * b[i];
    sum.add(product);
    magnitude.add(std::abs(product));
  }
  const double error = std::abs(tensor_core_dot(model, a, b, c) - sum.value());
  return error / tensor_core_dot_bound(model, static_cast<double>(a.size()), magnitude.value());
}

}  // namespace

TEST_CASE("Random dot products stay within the bound") {
  Philox random(1);
  for (const Case& c : kCases) {
    const TensorCoreModel model = tensor_core_model(c.gpu, c.input, c.output);
    double worst = 0;
    for (const int k : {1, 7, 32, 500, 2000}) {
      for (int i = 0; i < 60; ++i) {
        const int spread = i % 3 * 3;
        std::vector<float> a(k), b(k);
        const auto draw = [&] {
          const double x = random.normal() * (c.output == DType::f16 ? 0.1 : 1);
          const double scaled =
              std::ldexp(x, static_cast<int>(random.below(2 * spread + 1)) - spread);
          return rounded(i % 2 ? std::abs(scaled) : scaled, c.input);
        };
        for (float& x : a) x = draw();
        for (float& x : b) x = draw();
        const float start = rounded(i % 5 ? random.normal() : 0, c.output);
        worst = std::max(worst, ratio(model, a, b, start));
      }
    }
    INFO(c.gpu << " " << name(c.input) << " to " << name(c.output) << ": " << worst);
    CHECK(worst <= 1);
    CHECK(worst > 0.02);
  }
}

// One step, every truncation at its worst: the first product sets the exponent with significand 1,
// and the others lie just below a multiple of the last place that they keep. What remains between
// error and bound: significands of products reach 4 at the same exponent, and not all losses can be
// 1 at once. 4 is the factor that docs/numerics.md states.
TEST_CASE("The bound of a step is loose by less than a factor of 4") {
  for (const Case& c : kCases) {
    const TensorCoreModel model = tensor_core_model(c.gpu, c.input, c.output);
    if (model.split_block != 0) continue;
    const FusedStep& step = model.step;
    const int mantissa = static_cast<int>(-std::log2(unit_roundoff(c.input))) - 1;
    double worst = 0;
    // Products just below 2^-F of the largest: almost all of each is lost.
    const float near_two = 2 - std::ldexp(1.0f, -mantissa);
    for (int exponent = -step.fraction_bits - 3; exponent <= -step.fraction_bits + 1; ++exponent) {
      std::vector<float> a(step.terms), b(step.terms);
      a[0] = b[0] = 1;
      for (int i = 1; i < step.terms; ++i) {
        a[i] = std::ldexp(near_two, exponent / 2);
        b[i] = std::ldexp(near_two, exponent - exponent / 2);
      }
      // The last: almost one unit of the result, or half of one, which rounding then loses.
      const double unit = std::ldexp(1.0, -step.output_bits - (step.to_nearest ? 1 : 0));
      for (const float start : {0.0f, rounded(std::ldexp(1.999, exponent + 1), c.output),
                                rounded(0.998 * unit, c.output)}) {
        worst = std::max(worst, ratio(model, a, b, start));
      }
    }
    INFO(c.gpu << " " << name(c.input) << " to " << name(c.output) << ": " << worst);
    CHECK(worst <= 1);
    CHECK(worst > 0.25);
  }
}

TEST_CASE("A chain of positive terms comes within a factor of 16 of the bound") {
  // Truncation always rounds the same way here, so errors add up. Rounding to nearest does not.
  for (const Case& c : kCases) {
    const TensorCoreModel model = tensor_core_model(c.gpu, c.input, c.output);
    if (model.split_block != 0 || model.step.to_nearest) continue;
    Philox random(2);
    double worst = 0;
    for (int i = 0; i < 20; ++i) {
      std::vector<float> a(model.step.terms * 16), b(a.size());
      for (float& x : a) x = rounded(0.02 + 0.01 * random.uniform(), c.input);
      for (float& x : b) x = rounded(0.02 + 0.01 * random.uniform(), c.input);
      a[0] = b[0] = 1;
      worst = std::max(worst, ratio(model, a, b, 0));
    }
    INFO(c.gpu << " " << name(c.input) << " to " << name(c.output) << ": " << worst);
    CHECK(worst <= 1);
    CHECK(worst > 1.0 / 16);
  }
}

TEST_CASE("For H100 and f32 results a step errs by 5.25 units of 2^-23") {
  const TensorCoreModel model = tensor_core_model("h100", DType::bf16);
  CHECK(step_error(model.step) == Approx(5.25 * 0x1p-23).epsilon(1e-6));
  CHECK(tensor_core_dot_bound(model, 160, 1) == Approx(10 * 5.25 * 0x1p-23).epsilon(1e-5));
  CHECK(tensor_core_dot_bound(model, 161, 1) == Approx(11 * 5.25 * 0x1p-23).epsilon(1e-5));
}

TEST_CASE("Promotion every 128 products keeps the error of fp8 from growing") {
  const TensorCoreModel model = tensor_core_model("h100", DType::f8e4m3);
  CHECK(tensor_core_dot_bound(model, 4096, 1, 128) < tensor_core_dot_bound(model, 4096, 1) / 16);
}
