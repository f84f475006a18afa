// The special function unit's approximation against the bound that approx.h states, over all
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
constexpr double kRelative = 0x1p-22 * M_SQRT1_2 + 0x1p-24;  // with f32's rounding

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

/// Whether y may stand for 2^x. Arguments and results below the normal range become zero.
bool holds(float x, float y) {
  const double exact = std::exp2(std::abs(x) < kLeastNormal ? std::copysign(0.0, x) : x);
  if (std::isnan(exact)) return std::isnan(y);
  if (std::isinf(exact)) return y == exact;
  // Where the range ends within the bound, either side of the end will do.
  if (exact < kLeastNormal * (1 + kRelative) && y == 0) return true;
  if (exact > kLargest * (1 - kRelative) && std::isinf(y)) return y > 0;
  return std::abs(y - exact) <= kRelative * exact;
}

}  // namespace

TEST_CASE("the approximation of 2^x lies within its stated bound") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  // Odd steps, so that mantissas vary; the emulator has no time for more.
  const std::vector<float> values = arguments(runtime::is_emulated() ? 4099 : 509);
  const Tensor x = to_device(Tensor::from(values, {static_cast<int64_t>(values.size())}), kCuda);
  const Tensor y = Tensor::empty(x.shape(), DType::f32, kCuda);
  kernels::ex2_approximations(x, y);
  const Tensor results = to_device(y, Device{});
  int64_t wrong = 0;
  float first = 0, result = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (holds(values[i], results.data<float>()[i])) continue;
    if (wrong++ == 0) {
      first = values[i];
      result = results.data<float>()[i];
    }
  }
  INFO("of " << values.size() << " first at " << first << ": " << result);
  CHECK(wrong == 0);
}
