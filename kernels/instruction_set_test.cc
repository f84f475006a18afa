#include "kernels/instruction_set.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/softmax/softmax.h"

using namespace weft;
using namespace weft::kernels;

namespace {

std::vector<double> probabilities() {
  const Tensor x = Tensor::empty({1, 1000}), y = Tensor::empty({1, 1000});
  for (int i = 0; i < 1000; ++i) x.data<float>()[i] = 0.01f * static_cast<float>(i - 500);
  softmax({.x = x, .y = y, .axis = 1});
  return y.to_vector();
}

}  // namespace

TEST_CASE("Kernels follow the limit and come back from it") {
  const std::string best(instruction_set());
  const std::vector<double> expected = probabilities();
  limit_instruction_set("baseline");
  CHECK(instruction_set() == "baseline");
  const std::vector<double> baseline = probabilities();
  bool close = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    close = close && std::abs(baseline[i] - expected[i]) <= 1e-5 * expected[i];
  }
  CHECK(close);
  // The sum has as many parts as a vector has lanes, so its last bits show which instructions ran.
  const bool same = baseline == expected;
  CHECK(same == (best == "baseline"));
  limit_instruction_set(best);
  CHECK(instruction_set() == best);
  const bool back = probabilities() == expected;
  CHECK(back);
}

TEST_CASE("An unknown instruction set is named") {
  CHECK_THROWS_WITH(limit_instruction_set("sse9"),
                    "WEFT_INSTRUCTION_SET: expected avx512, avx2 or baseline, got \"sse9\"");
}
