// Training on several CUDA devices through the program itself; without a GPU on the emulated ones
// otherwise, hence small.
#include "core/runtime.h"
#include "tests/program/train_runs.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;

namespace {

#define NEEDS_DEVICE() \
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str())

/// One step on four images of four tokens.
std::string tiny(const std::string& more) {
  static const std::string folder = make_colour_folders("device_images", 4, 8, 8);
  return fmt::format(
      "--device cuda --model vit_lite --data folder:{} --global-batch-size 4 --limit-batches 1 "
      "--epochs 1 --seed 5 --optimizer sgd --lr 0.01 {}",
      folder, more);
}

}  // namespace

TEST_CASE("ranks on devices have one device's bits in a deterministic reduction, in fp16 too") {
  NEEDS_DEVICE();
  // The scale is too high for the first step: all ranks leave it out.
  const std::string fixed = "--deterministic-reduce=2 --precision fp16 --drop-path 0.1 ";
  const auto one = run_train("one", tiny(fixed));
  for (const std::string how : {"2 --strategy ddp", "2 --strategy fsdp --cpu-offload",
                                "2 --strategy zero1", "2 --strategy pipeline", "2 --strategy dp"}) {
    INFO(how);
    const auto many = run_train("many", tiny(fixed + "--devices " + how));
    CHECK(diff_weights("one", "many") == 0);
    CHECK(events_of(many, "step").back().at("loss") == events_of(one, "step").back().at("loss"));
  }
}

TEST_CASE("layers cut over devices train as one device does") {
  NEEDS_DEVICE();
  run_train("alone", tiny(""));
  run_train("cut", tiny("--devices 2 --strategy tp"));
  const Outcome outcome = run_weft("diff --json " + weights("alone") + " " + weights("cut"));
  INFO(outcome.err);
  // f32 sums of other orders in a step of 0.01: far below its size.
  CHECK(parse_lines(outcome.out).back().at("max_abs").get<double>() < 1e-5);
}

TEST_CASE("the second device trains as the first does") {
  NEEDS_DEVICE();
  if (runtime::device_count() < 2) WEFT_SKIP("a second CUDA device");
  run_train("first", tiny(""));
  std::string second = tiny("");
  second.replace(second.find("--device cuda "), 13, "--device cuda:1");
  run_train("second", second);
  CHECK(diff_weights("first", "second") == 0);
}

TEST_CASE("one device cannot be named for several ranks, nor one that is not there") {
  check_error(run_weft("train --device cuda:7 --output " + scratch("none")), 1, "cuda:7");
  if (runtime::device_count() < 2) WEFT_SKIP("a second CUDA device");
  check_error(run_weft("train --device cuda:1 --devices 2 --output " + scratch("none")), 2,
              "--devices 2 --device cuda:1: that is one device; expected --device cuda");
}
