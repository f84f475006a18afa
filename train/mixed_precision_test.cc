// Whole trainings of a small network: the narrow precisions end where fp32 does, and fp16 needs its
// loss scaled.
#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/philox.h"
#include "nn/layers.h"
#include "optim/adam.h"
#include "train/fabric.h"

namespace weft::train {
namespace {

using kernels::Accumulation;

/// Three arms of a spiral in the plane, with noise.
struct Spirals {
  Tensor points, arms;
  explicit Spirals(uint64_t stream, int64_t count = 256) {
    Philox random(11, stream);
    std::vector<float> xy;
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < count; ++i) {
      const double radius = 0.2 + 1.8 * static_cast<double>(random.uniform());
      const double angle = 1.2 * radius + static_cast<double>(i % 3) * 2 * std::numbers::pi / 3 +
                           0.15 * random.normal();
      xy.push_back(static_cast<float>(radius * std::cos(angle)));
      xy.push_back(static_cast<float>(radius * std::sin(angle)));
      labels.push_back(i % 3);
    }
    points = Tensor::from(xy, {count, 2});
    arms = Tensor::from(labels, {count});
  }
};

class Network : public nn::Module {
 public:
  Network()
      : fc1(add<nn::Linear>("fc1", 2, 48)),
        fc2(add<nn::Linear>("fc2", 48, 48)),
        fc3(add<nn::Linear>("fc3", 48, 3)) {}
  Tensor forward(const Tensor& x) override { return fc3(ops::gelu(fc2(ops::gelu(fc1(x))))); }
  nn::Linear &fc1, &fc2, &fc3;
};

struct Settings {
  const char* precision = "fp32";
  Accumulation accumulation = Accumulation::kIeee;
  bool scales = true;
  double loss_factor = 1;  // a loss whose gradients are small, as a mean over many outputs has
  Fp8Options::Scaling fp8 = Fp8Options::Scaling::kCurrent;
  const char* level = "";  // of fp8
};

/// The mean loss on points not trained on.
double final_loss(const Settings& s, uint64_t seed) {
  const Spirals train(1), test(2);
  Fabric fabric(
      {.precision = s.precision,
       .numerics = {.loss_scale = {.growth_interval = 50, .enabled = s.scales, .min_scale = 1},
                    .fp8 = {.scaling = s.fp8},
                    .fp8_level = s.level,
                    .accumulation = s.accumulation}});
  fabric.launch(nullptr);
  manual_seed(seed);
  Network network;
  optim::AdamW adam(network.named_parameters(), {.lr = 0.02, .eps = 1e-15, .weight_decay = 0});
  fabric.setup(network, adam);
  for (int step = 0; step < 120; ++step) {
    adam.zero_grad();
    fabric.backward(ops::cross_entropy(network(train.points), train.arms) * s.loss_factor);
    adam.step();
  }
  const NoGrad guard;
  return ops::cross_entropy(network(test.points), test.arms).item();
}

struct Spread {
  double mean = 0, low = INFINITY, high = -INFINITY;
  explicit Spread(const Settings& settings) {
    for (uint64_t seed : {1, 2, 3}) {
      const double loss = final_loss(settings, seed);
      mean += loss / 3;
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
};

TEST_CASE("narrow precisions end within the seed-to-seed spread of fp32") {
  const Spread fp32({});
  INFO("fp32: " << fp32.low << " to " << fp32.high);
  CHECK(fp32.mean < 0.5);  // from log 3 = 1.1
  for (const Settings& settings :
       {Settings{"tf32"}, Settings{"bf16"}, Settings{"fp16"}, Settings{"fp64"},
        Settings{"fp32", Accumulation::kExact}, Settings{"bf16", Accumulation::kH100},
        Settings{"fp16", Accumulation::kV100}, Settings{.precision = "fp8", .level = "O1"},
        Settings{.precision = "fp8", .level = "O2"}, Settings{.precision = "fp8", .level = "O3"}}) {
    const Spread other(settings);
    INFO(settings.precision << " " << settings.level << " " << kernels::name(settings.accumulation)
                            << ": " << other.low << " to " << other.high << ", mean off by "
                            << other.mean - fp32.mean);
    CHECK(std::abs(other.mean - fp32.mean) <= fp32.high - fp32.low);
  }
}

TEST_CASE("fp8 and the -true precisions learn") {
  for (const Settings& settings :
       {Settings{"fp8"}, Settings{.precision = "fp8", .fp8 = Fp8Options::Scaling::kDelayed},
        Settings{"fp8", Accumulation::kH100}, Settings{"bf16-true"}}) {
    INFO(settings.precision << " " << kernels::name(settings.accumulation));
    CHECK(final_loss(settings, 1) < 0.7);
  }
}

TEST_CASE("fp16 without loss scaling loses small gradients; with it they survive") {
  // Gradients of the size of 1e-6 / 256 and below: f16 ends at 2^-25.
  const double factor = 1e-6;
  const double fp32 = final_loss({.loss_factor = factor}, 1);
  const double scaled = final_loss({.precision = "fp16", .loss_factor = factor}, 1);
  const double unscaled =
      final_loss({.precision = "fp16", .scales = false, .loss_factor = factor}, 1);
  const double bf16 = final_loss({.precision = "bf16", .loss_factor = factor}, 1);
  CHECK(fp32 < 0.5);
  CHECK(scaled < 0.6);
  CHECK(bf16 < 0.6);
  CHECK(unscaled > 0.9);
}

}  // namespace
}  // namespace weft::train
