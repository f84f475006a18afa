// What weft estimate says of a training, against what the training's own files say it took.
#include "tests/program/train_runs.h"

using namespace weft::cli;

namespace {

struct Training {
  std::string options;  // of both commands
  std::string recipe;   // of train
};

/// The most that a row of the run's metrics says.
double trained_bytes(const std::string& run) {
  double most = 0;
  for (const json& row : parse_lines(read_file(scratch(run) + "/metrics.jsonl"))) {
    most = std::max(most, row.value("memory_bytes", 0.0));
  }
  return most;
}

}  // namespace

TEST_CASE("An estimated peak is a training's own, within 5%") {
  const auto training = GENERATE(
      Training{"--model simple_cnn --batch-size 256 --precision fp32", ""},
      Training{"--model vit_lite --batch-size 32 --precision bf16-true --checkpoint-activations",
               ""},
      Training{"--model gpt_mini --batch-size 16 --precision fp32", "--recipe gpt-quick"},
      Training{"--model gpt_mini --batch-size 16 --precision bf16-true --checkpoint-activations",
               "--recipe gpt-quick"},
      // Devices that share a layer or a pipeline have one batch together.
      Training{"--model vit_lite --batch-size 16 --precision fp32 --devices 2 --strategy tp", ""},
      Training{"--model vit_lite --batch-size 16 --precision fp32 --devices 2 --strategy pipeline",
               ""},
      Training{"--model vit_lite --batch-size 16 --precision fp32 --devices 2 --strategy ddp", ""});
  const Outcome estimate = run_weft("estimate --json " + training.options);
  INFO(training.options << "\n" << estimate.err);
  REQUIRE(estimate.code == 0);
  const json said = parse_lines(estimate.out).at(0);
  run_train("run", fmt::format("{} {} --max-steps 3 --limit-val-batches 1", training.recipe,
                               training.options));
  CHECK(said.at("peak_bytes").get<double>() == Approx(trained_bytes("run")).epsilon(0.05));
}
