// Modules that take their steps themselves: several models, each with an optimizer of its own.
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "dist/comm/in_process.h"
#include "optim/adam.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/testing.h"
#include "train/trainer/trainer.h"
#include "train/trainer/watch_layers.h"
#include "train/trainer/weight_averaging.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;
using Catch::Matchers::Contains;

namespace {

struct Mlp : nn::Sequential {
  Mlp(int64_t in, int64_t out) {
    append<nn::Linear>(in, 8);
    append<nn::SiLU>();
    append<nn::Linear>(8, out);
  }
};

Tensor judged(const Tensor& logits, bool as_real) {
  return nn::bce_with_logits(logits, Tensor::full(logits.shape(), as_real, logits.dtype()));
}

/// A batch: points [n, 2], noise [n, 3].
data::TensorDatasetPtr points(int64_t rows, DType dtype = DType::f32) {
  return data::tensor_dataset({normal({rows, 2}, 1, dtype), normal({rows, 3}, 2, dtype)});
}

struct Adversaries : TrainingModule {
  Adversaries() : generator(add<Mlp>("generator", 3, 2)), critic(add<Mlp>("critic", 2, 1)) {
    automatic_optimization = false;
  }
  Tensor forward(const Tensor& noise) override { return generator(noise); }
  NamedModels models() override { return {{"generator", &generator}, {"critic", &critic}}; }
  Tensor input(const Batch& batch) override { return batch[1]; }

  /// With what is called for a loss and a step, here as in a loop by hand.
  template <class Backward>
  std::pair<Tensor, Tensor> play(const Batch& batch, optim::Optimizer& draws,
                                 optim::Optimizer& judges, const Backward& backward) {
    const Tensor fake = generator(batch[1]);
    judges.zero_grad();
    const Tensor missed = judged(critic(batch[0]), true) + judged(critic(detach(fake)), false);
    backward(missed);
    judges.step();
    draws.zero_grad();
    const Tensor seen_through = judged(critic(fake), true);
    backward(seen_through);
    draws.step();
    return {missed, seen_through};
  }
  Tensor training_step(const Batch& batch, int64_t) override {
    const auto [missed, seen_through] =
        play(batch, optimizer(0), optimizer(1), [&](const Tensor& loss) { manual_backward(loss); });
    lr_scheduler().step();
    log_dict({{"missed", missed}, {"seen", seen_through}}, {.on_step = true});
    return returns_loss ? missed : Tensor();
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_seen", judged(critic(generator(batch[1])), true));
  }
  Optimization configure_optimizers() override {
    return {
        {std::make_unique<optim::Adam>(generator.named_parameters(),
                                       optim::AdamOptions{.lr = 0.02}),
         optim::exponential(0.9)},
        std::make_unique<optim::Adam>(critic.named_parameters(), optim::AdamOptions{.lr = 0.01})};
  }

  bool returns_loss = false;
  Mlp &generator, &critic;
};

std::vector<double> all_weights(nn::Module& module) {
  std::vector<double> all;
  for (const auto& [name, tensor] : module.named_parameters()) {
    for (const double v : tensor.to_vector()) all.push_back(v);
  }
  return all;
}

struct Rates : Logger {
  void log_metrics(int64_t, const NamedValues& values) override {
    for (const auto& [name, value] : values) {
      if (name == "lr") first.push_back(value);
      if (name == "lr_1") second.push_back(value);
    }
  }
  std::vector<double> first, second;
};

}  // namespace

TEST_CASE("two models with an optimizer each train as in a loop by hand") {
  const auto rates = std::make_shared<Rates>();
  Trainer trainer(quiet({.max_epochs = 2, .log_every_n_steps = 1, .loggers = {rates}}));
  trainer.seed_everything(1);
  Adversaries module;
  data::TensorLoader loader(points(16), {.batch_size = 4, .shuffle = true});
  data::TensorLoader validation(points(4), {.batch_size = 4});
  trainer.fit(module, loader, validation);
  CHECK(trainer.global_step() == 8);
  CHECK(trainer.optimizers() == 2);
  CHECK(trainer.metric("val_seen") > 0);
  CHECK(trainer.scheduler()->step_count() == 8);
  CHECK(trainer.scheduler(1) == nullptr);
  REQUIRE(rates->first.size() == 8);
  CHECK(rates->first[0] == 0.02);
  CHECK(rates->first[3] == Approx(0.02 * std::pow(0.9, 3)));
  CHECK(rates->second == std::vector<double>(8, 0.01));

  Fabric fabric({});
  fabric.launch(nullptr);
  fabric.seed_everything(1);
  Adversaries other;
  const Optimization optimization = other.configure_optimizers();
  optim::Optimizer& draws = *optimization.parts[0].optimizer;
  optim::Optimizer& judges = *optimization.parts[1].optimizer;
  fabric.setup(other.generator, draws);
  fabric.setup(other.critic, judges);
  optim::Scheduler scheduler(draws, optimization.parts[0].schedule);
  data::TensorLoader again(points(16), {.batch_size = 4, .shuffle = true});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    again.seek({epoch, 0});
    while (const auto batch = again.next()) {
      other.play(*batch, draws, judges, [&](const Tensor& loss) { fabric.backward(loss); });
      scheduler.step();
    }
  }
  CHECK(all_weights(module) == all_weights(other));
}

TEST_CASE("what takes its steps itself goes on from a checkpoint with the same bits") {
  const auto fit = [](int64_t steps, const std::string& from, const std::string& to) {
    Trainer trainer(quiet({.max_steps = steps}));
    trainer.seed_everything(from.empty() ? 1 : 2);
    Adversaries module;
    data::TensorLoader loader(points(16), {.batch_size = 4, .shuffle = true});
    trainer.fit(module, loader, {}, from);
    if (!to.empty()) trainer.save_checkpoint(to);
    return all_weights(module);
  };
  const std::string path = scratch("by_hand") + "/last.safetensors";
  const std::vector<double> straight = fit(10, "", "");
  fit(3, "", path);  // in the middle of an epoch
  CHECK(fit(10, path, "") == straight);

  // Its weights alone; and it is no checkpoint of another module.
  data::TensorLoader loader(points(16), {.batch_size = 4});
  Trainer trainer(quiet({.max_steps = 1}));
  trainer.seed_everything(5);
  Adversaries module;
  const double loaded = trainer.validate(module, loader, path)[0].second;
  CHECK(trainer.validate(module, loader)[0].second == loaded);
  Trainer other(quiet({.max_steps = 1}));
  Regression regression;
  data::TensorLoader pairs(line(16), {.batch_size = 4});
  CHECK_THROWS_WITH(other.fit(regression, pairs, {}, path), Contains("with 2 optimizers"));
}

TEST_CASE("several ranks take the steps that one does, under every strategy that a loop may have") {
  const auto fit = [](const FabricOptions& fabric, const dist::CommunicatorPtr& world) {
    TrainerOptions options = quiet({.fabric = fabric, .max_epochs = 3});
    options.fabric.precision = "64-true";
    options.fabric.split_batches = true;
    Trainer trainer(options);
    trainer.launch(world);
    trainer.seed_everything(1);
    Adversaries module;
    data::TensorLoader loader(points(16, DType::f64), {.batch_size = 8, .shuffle = true});
    trainer.fit(module, loader);
    std::vector<double> results = {trainer.metric("missed"), trainer.metric("seen")};
    for (const Tensor& part : trainer.predict(module, loader)) {
      const Tensor whole = trainer.fabric().gather_for_metrics(part);
      for (const double v : whole.to_vector()) results.push_back(v);
    }
    return results;
  };
  const std::vector<double> one = fit({}, nullptr);
  REQUIRE(one.size() == 2 + 16 * 2);
  for (const std::string strategy : {"ddp", "fsdp", "zero1"}) {
    INFO(strategy);
    std::vector<double> two;
    dist::run_ranks(2, [&](dist::Communicator& c) {
      const dist::CommunicatorPtr world(&c, [](dist::Communicator*) {});
      const std::vector<double> mine = fit({.devices = 2, .strategy = {.name = strategy}}, world);
      if (c.rank() == 0) two = mine;
    });
    REQUIRE(two.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-10));
  }
}

TEST_CASE("the loss scale is known to steps by hand; what they return is what callbacks see") {
  struct Losses : Callback {
    void on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor& loss, const Batch&,
                            int64_t) override {
      CHECK(trainer.has_stepped());
      seen.push_back(loss.defined() ? std::optional(loss.item()) : std::nullopt);
    }
    std::vector<std::optional<double>> seen;
  };
  for (const bool returns : {false, true}) {
    const auto losses = std::make_shared<Losses>();
    Trainer trainer(
        quiet({.fabric = {.precision = "16-mixed"}, .max_steps = 4, .callbacks = {losses}}));
    trainer.seed_everything(1);
    Adversaries module;
    module.returns_loss = returns;
    data::TensorLoader loader(points(16), {.batch_size = 4});
    trainer.fit(module, loader);
    REQUIRE(losses->seen.size() == 4);
    for (const auto& loss : losses->seen) CHECK(loss.has_value() == returns);
    if (returns) CHECK(losses->seen[0] < 3);  // not scaled by 65536
  }
}

TEST_CASE("what a step by hand leaves no place for is an error that names it") {
  data::TensorLoader loader(points(16), {.batch_size = 4});
  const auto refused = [&](TrainerOptions options, const std::string& name) {
    options.max_steps = 1;
    Trainer trainer(quiet(options));
    Adversaries module;
    CHECK_THROWS_WITH(trainer.fit(module, loader), Contains(name));
  };
  refused({.micro_batches = true}, "micro_batches");
  refused({.accumulate_grad_batches = 2}, "accumulate_grad_batches");
  refused({.gradient_clip_val = 1}, "gradient_clip_val");
  refused({.track_grad_norm = true}, "track_grad_norm");
  refused({.nonfinite = Nonfinite::kSkip}, "nonfinite");
  refused({.callbacks = {std::make_shared<EmaWeightAveraging>()}}, "EmaWeightAveraging");
  refused({.callbacks = {std::make_shared<WatchLayers>()}}, "WatchLayers");

  struct Automatic : Adversaries {
    Automatic() { automatic_optimization = true; }
  };
  Automatic automatic;
  Trainer trainer(quiet({.max_steps = 1}));
  CHECK_THROWS_WITH(trainer.fit(automatic, loader), Contains("automatic_optimization = false"));
  CHECK(Fabric::of(automatic.generator) == nullptr);
  struct Mixed : Regression {
    Tensor training_step(const Batch& batch, int64_t index) override {
      manual_backward(Regression::training_step(batch, index));
      return {};
    }
  };
  Mixed mixed;
  data::TensorLoader pairs(line(16), {.batch_size = 4});
  Trainer other(quiet({.max_steps = 1}));
  CHECK_THROWS_WITH(other.fit(mixed, pairs), Contains("manual_backward()"));
  struct TooMany : Adversaries {
    Tensor training_step(const Batch&, int64_t) override {
      CHECK_THROWS_WITH(lr_scheduler(1), Contains("optimizer 1 no schedule"));
      optimizer(2);
      return {};
    }
  };
  TooMany many;
  Trainer third(quiet({.max_steps = 1}));
  CHECK_THROWS_WITH(third.fit(many, loader), Contains("gave 2, there is no number 2"));
  struct Foreign : Adversaries {
    Optimization configure_optimizers() override {
      Optimization all = Adversaries::configure_optimizers();
      all.parts[1].optimizer = std::make_shared<optim::SGD>(foreign.named_parameters());
      first = all.parts[0].optimizer;
      return all;
    }
    Mlp foreign{2, 1};
    std::shared_ptr<optim::Optimizer> first;
  };
  Foreign foreign;
  Trainer fourth(quiet({.max_steps = 1}));
  CHECK_THROWS_WITH(fourth.fit(foreign, loader), Contains("is of no model that was set up"));
  CHECK(!foreign.first->has_route());
}
