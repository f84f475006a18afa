#include "numerics/error_bounds.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "core/philox.h"

namespace weft::numerics {
namespace {

TEST_CASE("gamma_n is Higham's n u / (1 - n u)") {
  CHECK(gamma(1, 0.25) == 0.25 / 0.75);
  CHECK(gamma(1000, 0x1p-24) > 1000 * 0x1p-24);
  CHECK(gamma(0, 0x1p-24) == 0);
}

TEST_CASE("the smallest subnormal of a format is the value of its code 1") {
  CHECK(smallest_subnormal(DType::f16) == to_double(f16::from_bits(1)));
  CHECK(smallest_subnormal(DType::bf16) == to_double(bf16::from_bits(1)));
  CHECK(smallest_subnormal(DType::f8e4m3) == to_double(f8e4m3::from_bits(1)));
  CHECK(smallest_subnormal(DType::f8e5m2) == to_double(f8e5m2::from_bits(1)));
  CHECK(smallest_subnormal(DType::f32) == std::numeric_limits<float>::denorm_min());
}

TEST_CASE("rounding errors stay within their bound, and reach a good part of it") {
  Philox random(1);
  for (DType dtype : {DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    double worst = 0;
    for (int i = 0; i < 20000; ++i) {
      const double x = std::ldexp(random.normal(), static_cast<int>(random.below(12)) - 8);
      double rounded = 0;
      visit_dtype(dtype, [&](auto tag) {
        rounded = to_double(from_double<typename decltype(tag)::type>(x));
      });
      const double bound = rounding_error(std::abs(x), dtype);
      const double error = std::abs(rounded - x);
      if (error > bound) FAIL("rounding " << x << " to " << name(dtype) << " is off by " << error);
      worst = std::max(worst, error / bound);
    }
    INFO(name(dtype));
    CHECK(worst > 0.8);
  }
}

TEST_CASE("f32 sums in any order stay within sum_bound") {
  Philox random(2);
  for (int n : {2, 17, 1000}) {
    std::vector<float> x(n);
    double exact = 0, magnitude = 0;
    for (float& v : x) {
      v = static_cast<float>(random.normal());
      exact += v;
      magnitude += std::abs(v);
    }
    float forward = 0, backward = 0;
    for (int i = 0; i < n; ++i) {
      forward += x[i];
      backward += x[n - 1 - i];
    }
    const double bound = sum_bound(n - 1, 0x1p-24, magnitude);
    CHECK(std::abs(forward - exact) <= bound);
    CHECK(std::abs(backward - exact) <= bound);
  }
}

TEST_CASE("A sum that loses every addend comes within 1.01 of its bound") {
  // Half a unit of the last place of 1, which ties to even and is lost, every time.
  for (int n : {2, 10, 1000}) {
    float sum = 1;
    for (int i = 1; i < n; ++i) sum += 0x1p-24f;
    const double magnitude = 1 + (n - 1) * 0x1p-24, error = std::abs(sum - magnitude);
    const double bound = sum_bound(n - 1, 0x1p-24, magnitude);
    INFO(n << " terms");
    CHECK(error <= bound);
    CHECK(bound <= 1.01 * error);
  }
}

// Of positive terms: where signs mix, partial sums are small beside sum |x|, and so are the errors.
TEST_CASE("The bound of a random sum of n positive terms is loose by less than 8 sqrt(n)") {
  Philox random(3);
  for (int n : {16, 256, 4096}) {
    double worst = 0;
    for (int trial = 0; trial < 50; ++trial) {
      float sum = 0;
      double exact = 0, magnitude = 0;
      for (int i = 0; i < n; ++i) {
        const float x = random.uniform();
        sum += x;
        exact += x;
        magnitude += std::abs(x);
      }
      worst = std::max(worst, std::abs(sum - exact) / sum_bound(n - 1, 0x1p-24, magnitude));
    }
    INFO(n << " terms: " << worst << " of the bound");
    CHECK(worst <= 1);
    CHECK(worst >= 1 / (8 * std::sqrt(n)));
  }
}

TEST_CASE("A product of n factors stays within gamma_n, loose by less than 8 sqrt(n)") {
  Philox random(4);
  for (int n : {2, 16, 256}) {
    double worst = 0;
    for (int trial = 0; trial < 50; ++trial) {
      float product = 1;
      long double exact = 1;
      for (int i = 0; i < n; ++i) {
        const float x = random.uniform(0.9f, 1.1f);
        product *= x;
        exact *= x;
      }
      const double error = static_cast<double>(std::abs(product - exact) / std::abs(exact));
      worst = std::max(worst, error / gamma(n, 0x1p-24));
    }
    INFO(n << " factors: " << worst << " of the bound");
    CHECK(worst <= 1);
    CHECK(worst >= 1 / (8 * std::sqrt(n)));
  }
}

}  // namespace
}  // namespace weft::numerics
