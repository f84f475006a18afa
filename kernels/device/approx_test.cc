// The special function unit's approximations against the bounds that approx.h states, over all
// exponents and both signs: on a GPU its own results, elsewhere the emulator's.
#include "kernels/device/approx_test.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/runtime.h"
#include "core/transfer.h"
#include "tests/skip.h"

using namespace weft;

namespace {

constexpr Device kCuda{DeviceType::cuda, 0};
constexpr double kLeastNormal = 0x1p-126, kLargest = 0x1.fffffep127;
constexpr double kRounding = 0x1p-24;  // of f32, relative

struct Function {
  const char* name;
  void (*run)(const Tensor& x, const Tensor& y);
  double (*exact)(double);
  double relative;      // beyond rounding
  double absolute = 0;  // in its place for arguments between 0.5 and 2
  bool flushes = true;  // arguments and results below the normal range become zero
};

/// Floats of both signs, all exponents, and mantissas spread by the step; the ends of each range.
std::vector<float> arguments(uint32_t step) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float end : {0.0f, 0x1p-149f, 0x1p-126f, 0.5f, 1.0f, 2.0f, 0x1.fffffep127f,
                    std::numeric_limits<float>::infinity()}) {
    for (float sign : {1.0f, -1.0f}) x.push_back(sign * end);
  }
  x.push_back(std::numeric_limits<float>::quiet_NaN());
  return x;
}

/// Whether y may stand for f(x).
bool holds(const Function& f, float x, float y) {
  const bool is_flushed = f.flushes && std::abs(x) < kLeastNormal;
  const double exact = f.exact(is_flushed ? std::copysign(0.0, x) : x);
  if (std::isnan(exact)) return std::isnan(y);
  if (std::isinf(exact)) return y == exact;
  const double relative = f.relative + kRounding, magnitude = std::abs(exact);
  // Where the range ends within the bound, either side of the end will do.
  if (f.flushes && magnitude < kLeastNormal * (1 + relative) && y == 0) return true;
  if (magnitude > kLargest * (1 - relative) && std::isinf(y)) return (y > 0) == (exact > 0);
  const bool is_near_one = f.absolute > 0 && x > 0.5f && x < 2.0f;
  const double bound = is_near_one ? f.absolute + kRounding * magnitude : relative * magnitude;
  // Below the normal range floats have no relative precision.
  return std::abs(y - exact) <= std::max(bound, f.flushes ? 0 : 0x1p-149);
}

}  // namespace

TEST_CASE("approximations lie within their stated bounds") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Function function = GENERATE(
      Function{"ex2", kernels::ex2_approximations, std::exp2, 0x1p-22 * M_SQRT1_2},
      Function{"lg2", kernels::lg2_approximations, std::log2, 0x1p-22, 0x1p-22},
      Function{"rcp", kernels::rcp_approximations, [](double x) { return 1 / x; }, 0x1p-23},
      Function{"rsqrt", kernels::rsqrt_approximations, [](double x) { return 1 / std::sqrt(x); },
               std::exp2(-22.9)},
      Function{"tanh", kernels::tanh_approximations, std::tanh, 0x1p-11, 0, false});
  INFO(function.name);
  // Odd steps, so that mantissas vary; the emulator has no time for more.
  const std::vector<float> values = arguments(runtime::is_emulated() ? 4099 : 509);
  const Tensor x = to_device(Tensor::from(values, {static_cast<int64_t>(values.size())}), kCuda);
  const Tensor y = Tensor::empty(x.shape(), DType::f32, kCuda);
  function.run(x, y);
  const Tensor results = to_device(y, Device{});
  int64_t wrong = 0;
  float first = 0, result = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (holds(function, values[i], results.data<float>()[i])) continue;
    if (wrong++ == 0) {
      first = values[i];
      result = results.data<float>()[i];
    }
  }
  INFO("of " << values.size() << " first at " << first << ": " << result);
  CHECK(wrong == 0);
}
