// The loop on a CUDA device, the emulated one where there is no other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "core/runtime.h"
#include "dist/comm/in_process.h"
#include "kernels/op.h"
#include "optim/registry.h"
#include "tests/skip.h"
#include "train/trainer/testing.h"
#include "train/trainer/weight_averaging.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;

TEST_CASE("a fit on a CUDA device is that on the CPU, and goes on with the same bits") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const std::string middle = scratch("device_middle");
  struct Middle : Callback {
    explicit Middle(std::string path) : path(std::move(path)) {}
    void on_save_point(Trainer& trainer, TrainingModule&) override {
      if (trainer.global_step() == 3) trainer.save_checkpoint(path);
    }
    std::string path;
  };
  const auto fit = [&](const std::string& device, const std::string& precision,
                       const std::string& from) {
    Trainer trainer(quiet({.fabric = {.device = device, .precision = precision},
                           .max_epochs = 2,
                           .gradient_clip_val = 1,
                           .callbacks = {std::make_shared<Middle>(middle),
                                         std::make_shared<EmaWeightAveraging>(EmaOptions{0.5})}}));
    trainer.seed_everything(1);
    Regression model;
    const DType dtype = precision == "64-true" ? DType::f64 : DType::f32;
    data::TensorLoader train(line(16, 0, dtype), {.batch_size = 4, .shuffle = true});
    data::TensorLoader validation(line(8, 1, dtype), {.batch_size = 4});
    trainer.fit(model, train, validation, from);
    std::vector<double> all = weights_of(trainer, model);
    all.push_back(trainer.metric("train_loss"));
    all.push_back(trainer.metric("val_loss"));
    return all;
  };
  const std::vector<double> cpu = fit("cpu", "64-true", ""), cuda = fit("cuda", "64-true", "");
  for (size_t i = 0; i < cpu.size(); ++i) CHECK(std::abs(cpu[i] - cuda[i]) < 1e-12);
  for (const std::string precision : {"64-true", "16-mixed"}) {
    const std::vector<double> whole = fit("cuda", precision, "");
    CHECK(fit("cuda", precision, middle) == whole);
  }
}

namespace {

/// Drops out, so that a graph that repeated its random numbers would be seen.
struct Dropping : TrainingModule {
  explicit Dropping(std::string optimizer = "adamw")
      : optimizer(std::move(optimizer)),
        in(add<nn::Linear>("in", 3, 16)),
        out(add<nn::Linear>("out", 16, 1)) {}
  Tensor forward(const Tensor& x) override {
    return out(ops::dropout(ops::gelu(in(x)), 0.25, is_training()));
  }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    const Tensor loss = nn::mse_loss(output, batch[1]);
    log("train_loss", loss, {.on_step = true});
    return loss;
  }
  Optimization configure_optimizers() override {
    return {optim::make_optimizer(optimizer, named_parameters(), {}),
            [](int64_t step) { return 0.1 / static_cast<double>(step + 1); }};
  }
  std::string optimizer;
  nn::Linear &in, &out;
};

struct Launches : kernels::LaunchHook {
  Launches() { kernels::set_launch_hook(this); }
  ~Launches() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view, std::string_view, Device, const std::string&) override { ++count; }
  void end() noexcept override {}
  int count = 0;
};

/// What each step came to.
struct Steps : Callback {
  void on_train_batch_start(Trainer&, TrainingModule&, const Batch&, int64_t) override {
    if (before < 0) before = launches.count;
  }
  void on_before_optimizer_step(Trainer&, TrainingModule&, optim::Optimizer&) override {
    launched.push_back(launches.count - std::exchange(before, -1));
  }
  void on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor& loss, const Batch&,
                          int64_t) override {
    losses.push_back(loss.item());
    if (!trainer.has_stepped()) return;
    norms.push_back(trainer.grad_norm());
    was_skipped.push_back(trainer.was_skipped());
    captured += trainer.was_captured();
  }
  Launches launches;
  int before = -1, captured = 0;
  std::vector<double> losses, norms;
  std::vector<int> launched;
  std::vector<bool> was_skipped;
};

struct Fit {
  std::vector<double> weights, losses, norms;
  std::vector<bool> was_skipped;
  std::vector<int> launched;
  int captured = 0;
  double mean = 0;  // of the losses
};

/// Two epochs of five batches of four, the last of one row; two batches make a step.
Fit fit_dropping(TrainerOptions options, bool is_broken = false,
                 const std::string& optimizer = "adamw") {
  const auto steps = std::make_shared<Steps>();
  options.max_epochs = 2;
  options.accumulate_grad_batches = 2;
  options.track_grad_norm = true;
  options.callbacks.push_back(steps);
  Trainer trainer(quiet(std::move(options)));
  trainer.seed_everything(1);
  Dropping model(optimizer);
  Tensor x = normal({17, 3}, 0);
  if (is_broken) x.data<float>()[3 * 12] = INFINITY;  // of the fourth batch
  data::TensorLoader train(data::tensor_dataset({x, ops::sum(x, {1}, true)}), {.batch_size = 4});
  trainer.fit(model, train);
  return {weights_of(trainer, model),  steps->losses,   steps->norms,
          steps->was_skipped,          steps->launched, steps->captured,
          trainer.metric("train_loss")};
}

}  // namespace

TEST_CASE("captured steps have the bits of those that are not") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const std::string precision = GENERATE("32-true", "bf16-mixed", "16-mixed");
  const bool micro_batches = GENERATE(false, true);
  INFO(precision << (micro_batches ? ", micro-batches" : ""));
  const auto fit = [&](Capture capture) {
    return fit_dropping({.fabric = {.device = "cuda", .precision = precision},
                         .micro_batches = micro_batches,
                         .gradient_clip_val = 0.5,
                         .nonfinite = Nonfinite::kStop,
                         .capture = capture});
  };
  const Fit eager = fit(Capture::kOff), captured = fit(Capture::kOn);
  CHECK(captured.weights == eager.weights);
  CHECK(captured.losses == eager.losses);
  CHECK(std::ranges::equal(captured.norms, eager.norms, [](double a, double b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  }));
  CHECK(captured.was_skipped == eager.was_skipped);
  CHECK(captured.mean == eager.mean);
  // The first step of all, and the last of each epoch, which has one batch, of one row.
  CHECK(eager.captured == 0);
  CHECK(captured.captured == 3);
  // Of forward and backward nothing is launched one by one; logged values are added up.
  fmt::print("kernels before the update of two batches: {}, beside a graph {}\n", eager.launched[3],
             captured.launched[3]);
  CHECK(captured.launched[3] < 15);
  CHECK(eager.launched[3] > 30);
}

TEST_CASE("every optimizer clips behind a captured step, and leaves one out") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const std::string optimizer = GENERATE("sgd", "lars", "lamb", "muon");
  INFO(optimizer);
  for (const bool is_broken : {false, true}) {
    const auto fit = [&](Capture capture) {
      return fit_dropping({.fabric = {.device = "cuda", .precision = "bf16-mixed"},
                           .gradient_clip_val = 0.5,
                           .nonfinite = Nonfinite::kSkip,
                           .capture = capture},
                          is_broken, optimizer);
    };
    const Fit eager = fit(Capture::kOff), captured = fit(Capture::kOn);
    CHECK(captured.captured == 3);
    CHECK(captured.weights == eager.weights);
    CHECK(captured.was_skipped == eager.was_skipped);
    CHECK(eager.was_skipped == std::vector<bool>{false, is_broken, false, false, is_broken, false});
  }
}

TEST_CASE("weights that are changed between captured steps are those that the next one reads") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  struct Halving : Callback {
    void on_train_batch_end(Trainer& trainer, TrainingModule& module, const Tensor&, const Batch&,
                            int64_t) override {
      if (!trainer.has_stepped()) return;
      const NoGrad guard;
      for (Tensor& weight : module.parameters()) ops::mul_(weight, ops::full_like(weight, 0.5));
    }
  };
  const auto fit = [&](Capture capture) {
    return fit_dropping({.fabric = {.device = "cuda", .precision = "bf16-mixed"},
                         .capture = capture,
                         .callbacks = {std::make_shared<Halving>()}});
  };
  const Fit eager = fit(Capture::kOff), captured = fit(Capture::kOn);
  CHECK(captured.captured == 3);
  CHECK(captured.weights == eager.weights);
  CHECK(captured.losses == eager.losses);
}

TEST_CASE("a captured step that is not finite is left out, or ends the fit, as any other") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const auto options = [](Nonfinite nonfinite, Capture capture) {
    return TrainerOptions{.fabric = {.device = "cuda"}, .nonfinite = nonfinite, .capture = capture};
  };
  const Fit eager = fit_dropping(options(Nonfinite::kSkip, Capture::kOff), true);
  const Fit captured = fit_dropping(options(Nonfinite::kSkip, Capture::kOn), true);
  const std::vector<bool> second = {false, true, false, false, true, false};
  CHECK(eager.was_skipped == second);
  CHECK(captured.was_skipped == second);
  CHECK(captured.weights == eager.weights);
  for (const Capture capture : {Capture::kOff, Capture::kOn}) {
    CHECK_THROWS_WITH(
        fit_dropping(options(Nonfinite::kStop, capture), true),
        Catch::StartsWith("training diverged at step 2: a gradient is not finite (") &&
            Catch::Contains("first in the gradient of out.bias"));
  }
}

TEST_CASE("what cannot be captured is said, or goes on as it was") {
  const auto with = [](const std::string& device, const std::string& precision, Capture capture) {
    return fit_dropping({.fabric = {.device = device, .precision = precision}, .capture = capture});
  };
  CHECK_THROWS_WITH(with("cpu", "32-true", Capture::kOn),
                    Catch::Contains("capture: the step cannot be captured: cpu has no graphs"));
  CHECK(with("cpu", "32-true", Capture::kAuto).captured == 0);
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  CHECK_THROWS_WITH(
      dist::run_ranks(2,
                      [&](dist::Communicator& c) {
                        Trainer trainer(quiet({.fabric = {.device = "cuda", .devices = 2},
                                               .max_epochs = 1,
                                               .capture = Capture::kOn}));
                        trainer.launch({&c, [](dist::Communicator*) {}});
                        Dropping model;
                        data::TensorLoader train(line(16), {.batch_size = 4});
                        trainer.fit(model, train);
                      }),
      Catch::Contains("would not see a rank fail inside a graph"));
  CHECK_THROWS_WITH(with("cuda", "transformer-engine", Capture::kOn),
                    Catch::Contains("fp8 waits for the device to choose its scales"));
  // Looks at its loss, or brings a tensor to the device.
  struct Looking : Dropping {
    explicit Looking(bool waits) : waits(waits) {}
    Tensor loss(const Tensor& output, const Batch& batch) override {
      const Tensor loss = Dropping::loss(output, batch);
      if (waits) return loss.item() > 1e9 ? loss * 2.0 : loss;
      return loss * ops::to(Tensor::scalar(2), loss.device());
    }
    bool waits;
  };
  const auto fit = [](bool waits, Capture capture) {
    Trainer trainer(quiet({.fabric = {.device = "cuda"}, .max_epochs = 1, .capture = capture}));
    trainer.seed_everything(1);
    Looking model(waits);
    data::TensorLoader train(line(16), {.batch_size = 4});
    trainer.fit(model, train);
    CHECK_FALSE(trainer.was_captured());
    return weights_of(trainer, model);
  };
  CHECK_THROWS_WITH(fit(true, Capture::kOn),
                    Catch::Contains("capture: step 2 cannot be captured: "));
  CHECK_THROWS_WITH(fit(false, Capture::kOn), Catch::Contains("a copy from cpu to cuda:0 is not"));
  for (const bool waits : {false, true}) {
    CHECK(fit(waits, Capture::kAuto) == fit(waits, Capture::kOff));
  }
}
