// Each setting of a strategy reaches it through Fabric, and changes what it says.
#include <catch2/catch.hpp>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "dist/comm/in_process.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/fabric.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

constexpr int kLayers = 4;
constexpr int64_t kWidth = 512, kLayer = kWidth * kWidth;  // 1 MiB of f32

struct Net : nn::Module {
  explicit Net(bool has_unused = false) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(&add<nn::Linear>(std::to_string(i), kWidth, kWidth, false));
    }
    if (has_unused) add<nn::Linear>("unused", 2, 2, false);
    scale = buffer("scale", Tensor::full({1}, 1 + 0x1p-12));
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (nn::Linear* layer : layers) y = (*layer)(y);
    return y * scale;
  }
  nn::ModelStructure structure() override { return {nn::wrap_modules<nn::Linear>()}; }
  std::vector<nn::Linear*> layers;
  Tensor scale;
};

/// What the first of two ranks sends in the last of three steps.
struct Step {
  int64_t sent = 0;  // bytes
  int reductions = 0, gathers = 0;
  int64_t gathered_peak = 0;  // bytes of memory
  DType buffer = DType::f32;
  std::vector<double> weights;
};

Step run_steps(const dist::StrategyOptions& strategy, const std::string& precision = "32-true",
               bool has_unused = false) {
  Step result;
  dist::run_ranks(2, [&](dist::Communicator& world) {
    MemoryAccount account;
    const MemoryAccount::Joined joined{account};
    Fabric fabric({.devices = 2, .precision = precision, .strategy = strategy});
    fabric.launch(dist::CommunicatorPtr(&world, [](dist::Communicator*) {}));
    fabric.seed_everything(3);
    Net net(has_unused);
    optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-3});
    fabric.setup(net, optimizer);
    const Tensor x = Tensor::full({2, kWidth}, 0.5 + world.rank());
    int64_t before = 0;
    size_t entries = 0;
    for (int step = 0; step < 3; ++step) {
      before = world.family_traffic().sent;
      entries = world.recorder().entries().size();
      account.reset_peak();
      optimizer.zero_grad();
      fabric.backward(ops::sum(ops::square(net(x))) * 1e-3);
      optimizer.step();
    }
    const int64_t sent = world.family_traffic().sent - before;
    const std::vector<dist::FlightRecorder::Entry> all = world.recorder().entries();
    const NamedTensors state = fabric.strategy().model_state(net);
    world.barrier().wait();
    if (world.rank() != 0) return;
    result.sent = sent;
    for (size_t i = entries; i < all.size(); ++i) {
      const std::string& what = all[i].collective;
      const bool is_of_step = all[i].bytes >= kLayer;  // no buffers, no flags
      result.reductions +=
          is_of_step && (what.starts_with("all_reduce") || what.starts_with("reduce_scatter"));
      result.gathers += is_of_step && what.starts_with("all_gather");
    }
    result.gathered_peak = account.bytes(MemoryKind::kGathered).peak;
    result.buffer = net.scale.dtype();
    for (const auto& [name, tensor] : state) {
      if (name != "0.weight") continue;
      result.weights = tensor.to_vector();
    }
  });
  return result;
}

}  // namespace

TEST_CASE("ddp: the size of buckets, what they travel in, and which parameters are used") {
  const Step usual = run_steps({.name = "ddp"}), small = run_steps({.name = "ddp", .bucket_mb = 1});
  CHECK(usual.reductions == 2);  // the first bucket has 1 MiB
  CHECK(small.reductions == kLayers);
  CHECK(small.sent == usual.sent);
  CHECK(small.weights == usual.weights);
  for (const char* narrow : {"bf16", "fp16"}) {
    const Step half = run_steps({.name = "ddp", .compress_dtype = narrow});
    CHECK(half.sent == Approx(usual.sent / 2.0).epsilon(1e-3));
    CHECK(half.weights != usual.weights);
  }
  CHECK_THROWS_WITH(run_steps({.name = "ddp"}, "32-true", true), Contains("no gradient reached"));
  CHECK(run_steps({.name = "ddp", .find_unused = true}, "32-true", true).weights == usual.weights);
  CHECK(run_steps({.name = "ddp", .static_graph = true}, "32-true", true).weights == usual.weights);
}

TEST_CASE("fsdp: units, and how long they are whole") {
  const Step usual = run_steps({.name = "fsdp"});
  CHECK(usual.reductions == kLayers);
  CHECK(usual.gathers == kLayers + kLayers - 2 - 1);  // the first needs no values in backward
  // One unit: nothing is in a smaller module.
  const Step whole = run_steps({.name = "fsdp", .wrap = std::to_string(kLayers * kLayer)});
  CHECK(whole.reductions == 1);
  CHECK(whole.gathers == 1);
  CHECK(run_steps({.name = "fsdp", .wrap = "Linear"}).reductions == kLayers);
  CHECK(run_steps({.name = "fsdp", .wrap = std::to_string(kLayer)}).reductions == kLayers);
  CHECK_THROWS_WITH(
      run_steps({.name = "fsdp", .wrap = "Block"}),
      Contains("the model has no module of class Block; it has") && Contains("weft::nn::Linear"));
  CHECK_THROWS_WITH(run_steps({.name = "fsdp", .wrap = "linaer"}),
                    Contains("no module of class linaer") && Contains("did you mean \"Linear\"?"));
  CHECK(run_steps({.name = "fsdp", .shard_grad_op = true}).gathers == kLayers);
  CHECK(run_steps({.name = "fsdp", .resident_units = kLayers}).gathers == kLayers);
  const Step no_prefetch = run_steps({.name = "fsdp", .no_prefetch = true});
  CHECK(no_prefetch.gathers == usual.gathers);
  CHECK(usual.gathered_peak == 3 * kLayer * 4);
  CHECK(no_prefetch.gathered_peak == 2 * kLayer * 4);
  for (const Step& other : {whole, no_prefetch}) CHECK(other.weights == usual.weights);
  for (const char* name : {"fsdp", "zero1", "zero2"}) {
    CHECK(run_steps({.name = name, .offload_optimizer = true}).weights == usual.weights);
  }
}

TEST_CASE("fsdp: what parameters, gradients and buffers are and travel in") {
  const Step usual = run_steps({.name = "fsdp"});
  const int64_t gathered = usual.gathers * kLayer * 4 / 2, reduced = kLayers * kLayer * 4 / 2;
  const int64_t others = usual.sent - gathered - reduced;  // flags
  CHECK((others >= 0 && others < 100));
  const Step narrow = run_steps({.name = "fsdp", .param_dtype = "bf16"});
  // Backward has the f32 copies that products made of them.
  CHECK(narrow.gathers == kLayers);
  CHECK(narrow.sent == kLayers * kLayer * 2 / 2 + reduced + others);
  const Step sums = run_steps({.name = "fsdp", .reduce_dtype = "bf16"});
  CHECK(sums.sent == gathered + reduced / 2 + others);
  CHECK(sums.weights != usual.weights);
  CHECK(usual.buffer == DType::f32);
  CHECK(run_steps({.name = "fsdp", .buffer_dtype = "bf16"}).buffer == DType::bf16);
}

TEST_CASE("in 16-bit precisions sharded weights travel narrow, and nothing else changes") {
  for (const char* precision : {"bf16-mixed", "16-mixed"}) {
    for (const char* name : {"fsdp", "zero1", "zero2", "hsdp"}) {
      INFO(precision << ", " << name);
      dist::StrategyOptions options{.name = name};
      if (options.name == "hsdp") options.shard_size = 2;
      const Step narrow = run_steps(options, precision);
      options.param_dtype = "fp32";
      const Step wide = run_steps(options, precision);
      CHECK(narrow.weights == wide.weights);
      CHECK(narrow.gathers == wide.gathers);
      CHECK(wide.sent - narrow.sent == wide.gathers * kLayer * (4 - 2) / 2);
    }
  }
  // fp8 scales its weights as they are.
  const Step fp8 = run_steps({.name = "fsdp"}, "transformer-engine");
  CHECK(fp8.sent >= fp8.gathers * kLayer * 4 / 2 + kLayers * kLayer * 4 / 2);
}
