// The loop on a CUDA device, the emulated one where there is no other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <set>

#include "core/runtime.h"
#include "dist/comm/in_process.h"
#include "kernels/op.h"
#include "models/airbench.h"
#include "models/compact.h"
#include "models/gpt.h"
#include "models/resnet.h"
#include "models/vgg.h"
#include "models/vit.h"
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
  for (const std::string precision : {"64-true", "16-mixed", "bf16-true", "16-true"}) {
    const std::vector<double> whole = fit("cuda", precision, "");
    CHECK(fit("cuda", precision, middle) == whole);
  }
}

namespace {

/// A linear layer on rows of which one number alone is not 0.
struct Lookup : TrainingModule {
  explicit Lookup(std::string optimizer)
      : optimizer(std::move(optimizer)), linear(add<nn::Linear>("linear", 8, 6, false)) {}
  Tensor forward(const Tensor& x) override { return linear(x); }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    return nn::mse_loss(output, batch[1]);
  }
  Optimization configure_optimizers() override {
    optim::Options options = {{"lr", 0.01}, {"weight_decay", 0.1}};
    if (optimizer == "sgd") {
      options = {{"lr", 0.5}, {"momentum", 0.9}, {"nesterov", 1}, {"weight_decay", 0.1}};
    }
    return {optim::make_optimizer(optimizer, named_parameters(), options)};
  }
  std::string optimizer;
  nn::Linear& linear;
};

}  // namespace

// Of every sum, of products as of a weight's gradient over a batch, one term is not 0: so no order
// of summation is another one's, all else is rounded where its definition says, and the promise of
// the optimizers' kernels is that of the whole step: the bits are the CPU's.
TEST_CASE("16-bit weights on a device have the CPU's bits where sums have one term") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const std::string precision = GENERATE("bf16-true", "16-true");
  const std::string optimizer = GENERATE("adamw", "adam", "sgd");
  INFO(precision << " " << optimizer);
  const auto fit = [&](const std::string& device) {
    Trainer trainer(quiet({.fabric = {.device = device, .precision = precision},
                           .max_epochs = 3,
                           .accumulate_grad_batches = 2}));
    trainer.seed_everything(1);
    Lookup model(optimizer);
    Tensor x = Tensor::zeros({16, 8});
    for (int64_t row = 0; row < 16; ++row) x.data<float>()[row * 8 + row % 8] = 0.75f;
    data::TensorLoader train(data::tensor_dataset({x, normal({16, 6}, 5)}), {.batch_size = 4});
    const std::vector<double> before = model.linear.weight.to_vector();
    trainer.fit(model, train);
    const std::vector<double> after = weights_of(trainer, model);
    for (size_t i = 0; i < after.size(); ++i) REQUIRE(after[i] != before[i]);
    return after;
  };
  CHECK(fit("cuda") == fit("cpu"));
}

namespace {

/// A model and what trains it.
struct Shipped {
  std::string name;
  std::function<std::unique_ptr<nn::Module>()> make;
  std::string optimizer;
  optim::Options options;
};

template <class Model, class Config>
auto maker(const Config& config) {
  return [config]() -> std::unique_ptr<nn::Module> { return std::make_unique<Model>(config); };
}

constexpr int64_t kClasses = 5, kTokens = 7;

/// One of each kind, made small.
std::vector<Shipped> shipped_models() {
  const models::EncoderConfig encoder = {
      .layers = 2, .heads = 2, .width = 16, .hidden = 24, .dropout = 0.1, .attention_dropout = 0.1};
  models::GptConfig llama = {.vocabulary = kClasses,
                             .context = kTokens,
                             .width = 16,
                             .layers = 2,
                             .heads = 2,
                             .kv_heads = 1,
                             .hidden = 24};
  models::GptConfig gpt2 = models::GptConfig::gpt2();
  gpt2.vocabulary = kClasses, gpt2.context = kTokens, gpt2.width = 16, gpt2.layers = 2;
  gpt2.heads = gpt2.kv_heads = 2, gpt2.hidden = 24;
  // In f16, whose smallest number is 6e-8, a thousandth of a small gradient's square is 0: with the
  // usual beta2 the error would be that of the format, not of the sums.
  const optim::Options adam = {{"lr", 0.01}, {"beta2", 0.9}, {"eps", 1e-3}};
  const optim::Options sgd = {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}};
  return {
      {"vit",
       maker<models::VisionTransformer>(
           models::VitConfig{.image_size = 8, .patch = 4, .classes = kClasses, .encoder = encoder}),
       "adamw", adam},
      {"cct",
       maker<models::CompactTransformer>(models::CompactConfig{.image_size = 8,
                                                               .classes = kClasses,
                                                               .stages = {8, 16},
                                                               .batch_norm = true,
                                                               .encoder = encoder}),
       "adamw", adam},
      {"resnet",
       maker<models::ResNet>(models::ResNetConfig{
           .image_size = 16, .classes = kClasses, .blocks = {1, 1}, .widths = {4, 8}}),
       "sgd", sgd},
      {"vgg",
       maker<models::Vgg>(models::VggConfig{.image_size = 32,
                                            .classes = kClasses,
                                            .stages = {{4}, {8}, {8}, {8}, {8}},
                                            .hidden = 16}),
       "adam", adam},
      {"airbench",
       maker<models::Airbench>(
           models::AirbenchConfig{.image_size = 9, .classes = kClasses, .widths = {4, 8, 8}}),
       "sgd", sgd},
      {"llama", maker<models::Gpt>(llama), "adamw", adam},
      {"gpt2", maker<models::Gpt>(gpt2), "adamw", adam},
  };
}

/// Classes of images, or of the token that follows each.
struct Classifying : TrainingModule {
  Classifying(const Shipped& shipped, DType starts_as) : shipped(shipped), net(shipped.make()) {
    const NoGrad guard;
    for (Tensor& w : net->parameters())
      ops::copy_(w, ops::cast(ops::cast(w, starts_as), w.dtype()));
  }
  nn::Module& model() override { return *net; }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    return nn::cross_entropy(ops::reshape(output, {-1, kClasses}), ops::flatten(batch[1], 0));
  }
  Optimization configure_optimizers() override {
    return {optim::make_optimizer(shipped.optimizer, net->named_parameters(), shipped.options)};
  }
  Shipped shipped;
  std::unique_ptr<nn::Module> net;
};

struct Trained {
  std::vector<double> before, after;  // all weights
};

/// Four steps from weights and images that are numbers of `held`.
Trained train_shipped(const Shipped& shipped, const std::string& device,
                      const std::string& precision, DType held) {
  Trainer trainer(quiet({.fabric = {.device = device, .precision = precision},
                         .max_steps = 4,
                         .gradient_clip_val = 1}));
  trainer.seed_everything(1);
  Classifying module(shipped, held);
  Trained result;
  std::set<std::string> names;
  for (const auto& [name, weight] : module.net->named_parameters()) {
    names.insert(name);
    for (double v : weight.to_vector()) result.before.push_back(v);
  }
  const nn::BatchRow row = module.net->batch_row();
  Philox random(3, 0);
  const auto draw = [&](const Shape& shape) {
    std::vector<int64_t> values(numel(shape));
    for (int64_t& v : values) v = static_cast<int64_t>(random.below(kClasses));
    return Tensor::from(values, shape);
  };
  constexpr int64_t kRows = 12;
  Shape shape = row.shape;
  shape.insert(0, kRows);
  const Tensor x = row.has_tokens ? draw(shape) : ops::cast(normal(shape, 4, held), DType::f32);
  const Tensor labels = draw(row.has_tokens ? shape : Shape{kRows});
  data::TensorLoader train(data::tensor_dataset({x, labels}), {.batch_size = 6});
  trainer.fit(module, train);
  for (const auto& [name, tensor] : trainer.fabric().strategy().model_state(*module.net)) {
    if (!names.contains(name)) continue;
    for (double v : tensor.to_vector()) result.after.push_back(v);
  }
  return result;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

}  // namespace

// The truth is the training in f64 from the same weights and data. Device and CPU round at the same
// places, each result once, and differ in the order of f32 sums, so their errors are of one size:
// of thousands of weights together within a factor of 2. Two that are independent and of one size
// are sqrt(2) of it apart, so 2 bounds that distance, too. A step or a weight that was left out
// would be as far off as the weights moved, which the errors are small beside.
TEST_CASE("the models that are shipped train with 16-bit weights on a device as on the CPU") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const auto [precision, held] =
      GENERATE(table<std::string, DType>({{"bf16-true", DType::bf16}, {"16-true", DType::f16}}));
  for (const Shipped& shipped : shipped_models()) {
    INFO(shipped.name << " in " << precision);
    const auto [before, truth] = train_shipped(shipped, "cpu", "64-true", held);
    const std::vector<double> cpu = train_shipped(shipped, "cpu", precision, held).after;
    const std::vector<double> cuda = train_shipped(shipped, "cuda", precision, held).after;
    const double error = distance(cpu, truth);
    fmt::print(
        "{} in {}: {} weights moved by {:.3g}; the CPU's are off by {:.3g}, the device's by "
        "{:.3g}, {:.3g} apart\n",
        shipped.name, precision, truth.size(), distance(before, truth), error,
        distance(cuda, truth), distance(cuda, cpu));
    CHECK(error < 0.5 * distance(before, truth));
    CHECK(distance(cuda, truth) < 2 * error);
    CHECK(distance(cuda, cpu) < 2 * error);
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
    kept.push_back(loss);
    if (!trainer.has_stepped()) return;
    norms.push_back(trainer.grad_norm());
    was_skipped.push_back(trainer.was_skipped());
    captured += trainer.was_captured();
  }
  Launches launches;
  int before = -1, captured = 0;
  std::vector<double> losses, norms;
  std::vector<Tensor> kept;  // the losses themselves
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

/// Two epochs of six batches of four, the last of three rows; two batches make a step.
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
  Tensor x = normal({23, 3}, 0);
  if (is_broken) x.data<float>()[3 * 12] = INFINITY;  // of the fourth batch
  data::TensorLoader train(data::tensor_dataset({x, ops::sum(x, {1}, true)}), {.batch_size = 4});
  trainer.fit(model, train);
  for (size_t i = 0; i < steps->kept.size(); ++i) {
    const double kept = steps->kept[i].item(), then = steps->losses[i];
    CHECK((kept == then || (std::isnan(kept) && std::isnan(then))));
  }
  return {weights_of(trainer, model),  steps->losses,   steps->norms,
          steps->was_skipped,          steps->launched, steps->captured,
          trainer.metric("train_loss")};
}

}  // namespace

TEST_CASE("captured steps have the bits of those that are not") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const std::string precision =
      GENERATE("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true");
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
  const std::string precision = GENERATE("bf16-mixed", "bf16-true");
  INFO(optimizer << " " << precision);
  for (const bool is_broken : {false, true}) {
    const auto fit = [&](Capture capture) {
      return fit_dropping({.fabric = {.device = "cuda", .precision = precision},
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

TEST_CASE("a step whose layers train no more as they were captured is computed anew") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  struct Freezing : Callback {
    void on_train_epoch_start(Trainer& trainer, TrainingModule& module) override {
      if (trainer.epoch() == 1) module.eval();
    }
  };
  const auto fit = [&](Capture capture) {
    return fit_dropping({.fabric = {.device = "cuda"},
                         .capture = capture,
                         .callbacks = {std::make_shared<Freezing>()}});
  };
  const Fit eager = fit(Capture::kOff), captured = fit(Capture::kOn);
  CHECK(captured.captured == 1);
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
