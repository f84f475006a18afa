#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/instruction_set_test.cc"
#include "core/simd/targets_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {
int64_t target() { return HWY_TARGET; }
}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/instruction_set.h"
#include "kernels/softmax/softmax.h"

namespace weft::kernels {
namespace {

HWY_EXPORT(target);

/// Highway's bit of the code that a dispatch runs now.
int64_t running_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

std::vector<double> probabilities() {
  const Tensor x = Tensor::empty({1, 1000}), y = Tensor::empty({1, 1000});
  for (int i = 0; i < 1000; ++i) x.data<float>()[i] = 0.01f * static_cast<float>(i - 500);
  softmax({.x = x, .y = y, .axis = 1});
  return y.to_vector();
}

TEST_CASE("Kernels follow the limit and come back from it") {
  const std::string best(instruction_set());
  const int64_t best_target = running_target();
  const std::vector<double> expected = probabilities();
  limit_instruction_set("baseline");
  CHECK(instruction_set() == "baseline");
  const std::vector<double> baseline = probabilities();
  bool close = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    close = close && std::abs(baseline[i] - expected[i]) <= 1e-5 * expected[i];
  }
  CHECK(close);
  // Which of the two depends on the compiler.
  CHECK((running_target() == HWY_SCALAR || running_target() == HWY_EMU128));
  limit_instruction_set(best);
  CHECK(instruction_set() == best);
  CHECK(running_target() == best_target);
  const bool back = probabilities() == expected;
  CHECK(back);
}

TEST_CASE("An unknown instruction set is named") {
  CHECK_THROWS_WITH(limit_instruction_set("sse9"),
                    "WEFT_INSTRUCTION_SET: expected avx512, avx2 or baseline, got \"sse9\"");
}

}  // namespace
}  // namespace weft::kernels

#endif
