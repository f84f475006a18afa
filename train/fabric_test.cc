// Fabric's loop under every strategy and precision, with ranks as threads.
#include "train/fabric.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "dist/comm/in_process.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

std::unique_ptr<nn::Sequential> make_model() {
  auto model = std::make_unique<nn::Sequential>();
  model->append<nn::Linear>(6, 12);
  model->append<nn::GELU>();
  model->append<nn::Linear>(12, 4);
  return model;
}

struct Result {
  std::vector<double> losses, norms;
  NamedTensors state;
  int64_t skipped = 0;
};

/// Three steps on 12 rows; each data rank takes its share of them.
Result train(const FabricOptions& options, const dist::CommunicatorPtr& world) {
  Fabric fabric(options);
  fabric.launch(world);
  fabric.seed_everything(1);
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
  nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
  structure.mlps = {
      {dynamic_cast<nn::Linear*>(&(*model)[0]), dynamic_cast<nn::Linear*>(&(*model)[2])}};
  structure.segments = model->structure().segments;
  structure.replica = make_model;
  fabric.setup(*model, optimizer, structure);
  Result result;
  for (int step = 0; step < 3; ++step) {
    const NoGrad guard;
    Philox random(7, static_cast<uint64_t>(step));
    std::vector<float> values(12 * 6);
    for (float& v : values) v = static_cast<float>(random.normal());
    Tensor x = Tensor::from(values, {12, 6});
    Tensor labels = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}, {12});
    const int ranks = fabric.data_size(), rows = 12 / ranks;
    x = ops::contiguous(ops::narrow(x, 0, fabric.data_rank() * rows, rows));
    labels = ops::contiguous(ops::narrow(labels, 0, fabric.data_rank() * rows, rows));
    const GradMode records(true);
    optimizer.zero_grad();
    const Tensor loss = ops::cross_entropy(fabric.forward(x), ops::to(labels, fabric.device()));
    fabric.backward(loss);
    result.norms.push_back(fabric.clip_gradients(optimizer, 0.5));
    result.skipped += !fabric.step(optimizer);
    const Tensor mean = detach(loss);
    fabric.all_reduce(mean);
    result.losses.push_back(mean.item());
  }
  const std::string path =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") +
      "/fabric.safetensors";
  fabric.save(path);
  result.state = io::read_safetensors(path).tensors;
  // What was saved can be taken up by all.
  fabric.load(path);
  fabric.barrier();
  return result;
}

Result train_ranks(const FabricOptions& options) {
  if (options.devices == 1 || options.strategy.name == "dp") return train(options, nullptr);
  Result result;
  dist::run_ranks(options.devices, [&](dist::Communicator& c) {
    Result mine = train(options, {&c, [](dist::Communicator*) {}});
    if (c.rank() == 0) result = std::move(mine);
  });
  return result;
}

double largest_difference(const Result& a, const Result& b) {
  double largest = 0;
  REQUIRE(a.state.size() == b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) {
    REQUIRE(a.state[i].first == b.state[i].first);
    const auto x = a.state[i].second.to_vector(), y = b.state[i].second.to_vector();
    for (size_t j = 0; j < x.size(); ++j) largest = std::max(largest, std::abs(x[j] - y[j]));
  }
  return largest;
}

}  // namespace

TEST_CASE("one loop, every strategy: the same weights in f64") {
  const Result one = train_ranks({.precision = "64-true"});
  for (const FabricOptions& options :
       {FabricOptions{.devices = 3, .strategy = {.name = "dp"}},
        {.devices = 2, .strategy = {.name = "ddp"}},
        {.devices = 3, .strategy = {.name = "fsdp"}},
        {.devices = 4, .strategy = {.name = "zero1"}},
        {.devices = 4, .strategy = {.name = "hsdp"}},
        {.devices = 3, .strategy = {.name = "tp"}},
        {.devices = 4, .strategy = {.name = "fsdp+tp"}},
        {.devices = 3, .strategy = {.name = "pipeline"}},
        {.devices = 3, .strategy = {.name = "pipeline", .schedule = dist::Schedule::kGpipe}},
        {.devices = 4,
        .strategy = {.name = "pipeline", .pipeline_stages = 2, .micro_batches = 3}}}) {
    FabricOptions double_options = options;
    double_options.precision = "64-true";
    INFO(options.strategy.name << " on " << options.devices);
    const Result result = train_ranks(double_options);
    CHECK(largest_difference(result, one) < 1e-12);
    for (int step = 0; step < 3; ++step) {
      CHECK(std::abs(result.losses[step] - one.losses[step]) < 1e-12);
      CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-12);
    }
  }
}

TEST_CASE("Fabric's precisions train on one rank and on several") {
  const Result exact = train_ranks({.precision = "32-true"});
  for (const std::string precision : {"16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
    for (const std::string strategy : {"single", "ddp", "fsdp", "zero2", "tp", "pipeline"}) {
      INFO(precision << " " << strategy);
      const int devices = strategy == "single" ? 1 : 2;
      const Result result =
          train_ranks({.devices = devices, .precision = precision, .strategy = {.name = strategy}});
      // 8 bits of bf16, and of 16-mixed's gradients none lost to the loss scale of 65536.
      CHECK(std::abs(result.losses[0] - exact.losses[0]) < 0.02 * exact.losses[0]);
      CHECK(std::abs(result.norms[0] - exact.norms[0]) < 0.05 * exact.norms[0]);
      CHECK(result.skipped == 0);
      const bool is_true = precision.ends_with("-true");
      const DType expected = !is_true ? DType::f32 : precision[0] == 'b' ? DType::bf16 : DType::f16;
      CHECK(result.state[0].second.dtype() == expected);
      CHECK(largest_difference(result, exact) > 0);
    }
  }
  CHECK_THROWS_WITH(Fabric({.precision = "17-mixed"}), Contains("precision: \"17-mixed\""));
  CHECK_THROWS_WITH(Fabric({.devices = 3, .strategy = {.name = "fsdp+tp"}}),
                    Contains("no mesh of 2"));
}

TEST_CASE("on CUDA devices every strategy has the weights of one CPU in f64") {
  CHECK_THROWS_WITH(Fabric({.device = "cuda:1", .devices = 2}),
                    "fabric: 2 devices, but device \"cuda:1\" is one of them; expected \"cuda\"");
  if (runtime::device_count() == 0) {
    CHECK_THROWS_WITH(train_ranks({.device = "cuda"}), Contains("device cuda:0 is not available"));
    WEFT_SKIP(runtime::no_device_reason().c_str());
  }
  const Result one = train_ranks({.precision = "64-true"});
  for (const FabricOptions& options :
       {FabricOptions{.devices = 1, .strategy = {.name = "single"}},
        {.devices = 3, .strategy = {.name = "dp"}},
        {.devices = 2, .strategy = {.name = "ddp"}},
        {.devices = 3, .strategy = {.name = "fsdp"}},
        {.devices = 2, .strategy = {.name = "fsdp", .cpu_offload = true}},
        {.devices = 4, .strategy = {.name = "zero1"}},
        {.devices = 2, .strategy = {.name = "zero2"}},
        {.devices = 2, .strategy = {.name = "zero3"}},
        {.devices = 4, .strategy = {.name = "hsdp"}},
        {.devices = 2, .strategy = {.name = "tp"}},
        {.devices = 4, .strategy = {.name = "fsdp+tp"}},
        {.devices = 3, .strategy = {.name = "pipeline"}}}) {
    FabricOptions there = options;
    there.device = "cuda";
    there.precision = "64-true";
    INFO(options.strategy.name << " on " << options.devices);
    const Result result = train_ranks(there);
    CHECK(largest_difference(result, one) < 1e-10);
    for (int step = 0; step < 3; ++step) {
      CHECK(std::abs(result.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-10);
    }
    there.precision = "16-mixed";
    CHECK(std::abs(train_ranks(there).losses[0] - one.losses[0]) < 0x1p-8 * one.losses[0]);
  }
}

TEST_CASE("trap: an infinite gradient of one rank makes all of them leave the step out") {
  for (const std::string strategy : {"ddp", "fsdp", "zero1", "pipeline"}) {
    dist::run_ranks(2, [&](dist::Communicator& c) {
      Fabric fabric({.devices = 2, .precision = "16-mixed", .strategy = {.name = strategy}});
      fabric.launch(dist::CommunicatorPtr(&c, [](dist::Communicator*) {}));
      fabric.seed_everything(1);
      const auto model = make_model();
      optim::AdamW optimizer(model->named_parameters(), {.lr = 0.01});
      nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
      structure.segments = model->structure().segments;
      fabric.setup(*model, optimizer, structure);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        // The first step's gradients leave fp16's range behind the last layer, on one rank
        // alone where ranks have samples of their own.
        const bool overflows = step == 0 && (strategy == "pipeline" || c.rank() == 1);
        const Tensor logits = fabric.forward(Tensor::full({4, 6}, 1));
        fabric.backward(ops::sum(logits) * (overflows ? 1e6 : 1.0));
        const bool is_taken = fabric.step(optimizer);
        WEFT_CHECK(is_taken == (step == 1), "{}: step {} on rank {}", strategy, step, c.rank());
      }
    });
  }
}
