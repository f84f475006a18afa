// The memory a training step of ViT-B/16 may take.
#include "tests/program/train_runs.h"

using namespace weft::cli;

namespace {

/// Bytes of 16-bit activations that a step of ViT-B/16 keeps for its backward, of Korthikanti et
/// al., "Reducing Activation Recomputation in Large Transformer Models" (2022), eq. 1, for MLPs of
/// width f, without dropout and without the matrix of scores, of which the row statistics stay.
double activation_bytes(double batch) {
  constexpr double tokens = 197, width = 768, mlp = 3072, heads = 12, layers = 12;
  return layers * (tokens * batch * width * (16 + 4 * mlp / width) + 4 * heads * tokens * batch);
}

int64_t peak_bytes(const std::string& precision) {
  const Outcome outcome = run_weft(
      "bench step --json --model vit_b_16 --batch-size 4 --steps 1 --precision " + precision);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const json result = parse_lines(outcome.out).back();
  REQUIRE(result.at("parameters") == 86567656);
  return result.at("peak_bytes").get<int64_t>();
}

}  // namespace

TEST_CASE("A step of ViT-B/16 stays under 16 bytes a parameter and its activations") {
  constexpr double parameters = 86567656;
  // Weights, gradients and AdamW's two moments in fp32; with bf16 a narrow copy of the weights too.
  CHECK(peak_bytes("fp32") < 16 * parameters + 1.15 * 2 * activation_bytes(4));
  CHECK(peak_bytes("bf16") < 18 * parameters + 1.15 * activation_bytes(4));
}
