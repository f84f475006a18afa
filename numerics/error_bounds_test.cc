#include "numerics/error_bounds.h"

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

}  // namespace
}  // namespace weft::numerics
