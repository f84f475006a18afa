// The step that bench and compare time, of a vision transformer of one layer: captured in a CUDA
// graph it leaves the parameters that eager steps leave, in every precision.
#include "cli/step/training_step.h"

#include <catch2/catch.hpp>

#include "core/runtime.h"
#include "core/transfer.h"
#include "tests/skip.h"

namespace weft::cli {
namespace {

using Catch::Contains;

StepOptions options(const std::string& precision, Device device) {
  StepOptions result{.model = "vit_b_16", .precision = precision, .batch = 2, .device = device};
  result.options = {.image_size = 16,
                    .classes = 5,
                    .patch = 8,
                    .layers = 1,
                    .heads = 2,
                    .width = 32,
                    .hidden = 48};
  return result;
}

std::vector<uint8_t> bits_of(const models::Classifier& model) {
  std::vector<uint8_t> bits;
  for (const Tensor& parameter : model.parameters()) {
    const Tensor here = to_device(parameter, Device{});
    const auto* first = static_cast<const uint8_t*>(here.raw());
    bits.insert(bits.end(), first, first + here.nbytes());
  }
  return bits;
}

TEST_CASE("a captured step repeats eager ones in every precision") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const std::string precision = GENERATE("fp32", "tf32", "bf16", "fp16");
  INFO(precision);
  const Device device{DeviceType::cuda, 0};
  TrainingStep eager(options(precision, device)), captured(options(precision, device));
  CHECK(bits_of(eager.model()) == bits_of(captured.model()));
  // fp16's first scales may be too large: by the sixth step the optimizer has made one.
  for (int i = 0; i < 7; ++i) {
    if (i == 5) captured.capture();
    eager.run();
    captured.run();
  }
  CHECK(bits_of(eager.model()) == bits_of(captured.model()));
}

TEST_CASE("fp8 and the CPU have no captured steps") {
  TrainingStep here(options("fp32", Device{}));
  CHECK_THROWS_WITH(here.capture(), Contains("graph: expected a CUDA device, got cpu"));
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  TrainingStep fp8(options("fp8", Device{DeviceType::cuda, 0}));
  CHECK_THROWS_WITH(fp8.capture(), Contains("waits for the device in every step to choose"));
}

}  // namespace
}  // namespace weft::cli
