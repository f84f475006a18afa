// Precisions and fine-tuning on several ranks: what one rank does, bit for bit.
#include "io/safetensors.h"
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;

namespace {

/// A tiny run whose batches are added up in one order on any number of ranks.
std::string tiny(const std::string& more) {
  static const std::string folder = make_colour_folders("precision_images", 30, 16, 16);
  return fmt::format(
      "--model vit_lite --data folder:{} --limit-batches 2 --seed 5 --epochs 1 "
      "--global-batch-size 22 --deterministic-reduce=4 {}",
      folder, more);
}

/// The first ranks' runs must have the weights, and the loss scales, of one rank's.
void check_same(const std::string& settings, const std::vector<std::string>& ranks) {
  const auto scales = [](const std::vector<json>& run) {
    std::string all;
    for (const json& step : events_of(run, "step")) all += step.value("loss_scale", json()).dump();
    return all;
  };
  const auto one = run_train("one", tiny(settings));
  for (const std::string& how : ranks) {
    INFO(settings << how);
    const auto many = run_train("many", tiny(settings + how));
    CHECK(diff_weights("one", "many") == 0);
    CHECK(scales(one) == scales(many));
  }
}

}  // namespace

TEST_CASE("fp16 with loss scaling: an infinity makes all ranks skip, and the scales agree") {
  // A scale this high overflows at first: steps are skipped until it has fallen.
  check_same("--precision fp16 --initial-loss-scale 4194304 --accumulate 1 ",
             {"--devices 2", "--devices 2 --strategy fsdp", "--devices 4 --strategy zero1",
              "--devices 2 --strategy dp", "--devices 2 --strategy pipeline"});
}

TEST_CASE("bf16 and the -true precisions have one rank's bits") {
  check_same("--precision bf16 ", {"--devices 2 --strategy zero2", "--devices 2 --strategy dp"});
  check_same("--precision bf16-true ", {"--devices 2 --strategy fsdp"});
}

TEST_CASE("fp8 has one rank's bits, with delayed scales too") {
  check_same("--precision fp8 ", {"--devices 2 --strategy fsdp", "--devices 4 --strategy dp",
                                  "--devices 2 --strategy pipeline"});
  check_same("--precision fp8 --fp8-scaling delayed ",
             {"--devices 2 --strategy ddp", "--devices 2 --strategy dp",
              "--devices 2 --strategy pipeline"});
}

TEST_CASE("frozen parameters and layer decay have one rank's bits under sharding") {
  check_same("--freeze stem --freeze encoder.layers.encoder_layer_0 --layer-decay 0.7 ",
             {"--devices 2", "--devices 2 --strategy fsdp", "--devices 2 --strategy zero1",
              "--devices 2 --strategy pipeline"});
}
