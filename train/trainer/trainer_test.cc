// The loop: what it fits, where it stops, what it says.
#include "train/trainer/trainer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "autograd/random.h"
#include "data/sets/open.h"
#include "dist/comm/in_process.h"
#include "io/safetensors.h"
#include "optim/adam.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/testing.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

template <class Module>
struct WithAdam : Module {
  Optimization configure_optimizers() override {
    return std::make_unique<optim::Adam>(Module::named_parameters(),
                                         optim::AdamOptions{.lr = 0.05});
  }
};

dist::CommunicatorPtr borrowed(dist::Communicator& c) {
  return {&c, [](dist::Communicator*) {}};
}

struct Kept : Logger {
  void begin(int64_t step) override { began_at = step; }
  void log_metrics(int64_t step, const NamedValues& values) override {
    for (const auto& [name, value] : values) lines.emplace_back(step, name, value);
  }
  void end_epoch(int64_t epoch, int64_t, const NamedValues&) override { epochs = epoch + 1; }
  void finish() override { ++finished; }
  std::vector<double> of(const std::string& wanted) const {
    std::vector<double> values;
    for (const auto& [step, name, value] : lines) {
      if (name == wanted) values.push_back(value);
    }
    return values;
  }
  std::vector<std::tuple<int64_t, std::string, double>> lines;
  int64_t began_at = -1, epochs = 0, finished = 0;
};

/// Writes down what is called.
struct Recorder : Callback {
  void on_fit_start(Trainer&, TrainingModule&) override { text += "fit("; }
  void on_fit_end(Trainer&, TrainingModule&) override { text += ")fit"; }
  void on_sanity_check_start(Trainer&, TrainingModule&) override { text += "sanity("; }
  void on_sanity_check_end(Trainer&, TrainingModule&) override { text += ") "; }
  void on_train_start(Trainer&, TrainingModule&) override { text += "train("; }
  void on_train_end(Trainer&, TrainingModule&) override { text += ")train "; }
  void on_train_epoch_start(Trainer&, TrainingModule&) override { text += "epoch("; }
  void on_train_epoch_end(Trainer&, TrainingModule&) override { text += ")epoch "; }
  void on_train_batch_start(Trainer&, TrainingModule&, const Batch&, int64_t index) override {
    text += "b" + std::to_string(index);
  }
  void on_before_optimizer_step(Trainer&, TrainingModule&, optim::Optimizer&) override {
    text += "*";
  }
  void on_train_batch_end(Trainer&, TrainingModule&, const Tensor&, const Batch&,
                          int64_t) override {
    text += " ";
  }
  void on_validation_start(Trainer&, TrainingModule& module) override {
    text += "val(";
    CHECK(module.is_training());
  }
  void on_validation_end(Trainer&, TrainingModule&) override { text += ") "; }
  void on_save_point(Trainer&, TrainingModule&) override { text += "save "; }
  std::string text;
};

std::string hooks_of(TrainerOptions options) {
  const auto recorder = std::make_shared<Recorder>();
  options.callbacks = {recorder};
  Trainer trainer(quiet(options));
  Regression model;
  data::TensorLoader train(line(10), {.batch_size = 2}), validation(line(6), {.batch_size = 2});
  trainer.fit(model, train, validation);
  return recorder->text;
}

}  // namespace

TEST_CASE("a linear regression comes to its solution, in every precision") {
  for (const std::string precision : {"32-true", "64-true", "bf16-mixed", "16-mixed"}) {
    INFO(precision);
    const auto kept = std::make_shared<Kept>();
    Trainer trainer(quiet({.fabric = {.precision = precision},
                           .max_epochs = 60,
                           .log_every_n_steps = 10,
                           .loggers = {kept}}));
    trainer.seed_everything(1);
    Regression model;
    const DType dtype = precision == "64-true" ? DType::f64 : DType::f32;
    data::TensorLoader train(line(64, 0, dtype), {.batch_size = 16, .shuffle = true, .seed = 3});
    data::TensorLoader validation(line(40, 1, dtype), {.batch_size = 16});
    trainer.fit(model, train, validation);
    CHECK(trainer.global_step() == 240);
    CHECK(trainer.epoch() == 60);
    CHECK(trainer.stop_reason() == "max_epochs = 60");
    // Half of the last bit of bf16 and f16 in each product.
    const double tolerance = precision == "bf16-mixed" ? 0x1p-6
                             : precision == "16-mixed" ? 0x1p-9
                                                       : 1e-5;
    const std::vector<double> weights = weights_of(trainer, model);
    const std::vector<double> expected = {1, -2, 0.5, 0.25};
    for (size_t i = 0; i < 4; ++i) CHECK(std::abs(weights[i] - expected[i]) < tolerance);
    CHECK(kept->of("val_loss").size() == 60);
    CHECK(kept->of("val_loss").back() == trainer.metric("val_loss"));
    CHECK(kept->of("train_loss").size() == 60);
    CHECK(kept->of("train_loss").back() < kept->of("train_loss").front());
    CHECK(kept->of("train_loss_step").size() == 24);
    CHECK(kept->of("lr") == std::vector<double>(24, 0.1));
    CHECK(kept->began_at == 0);
    CHECK(kept->epochs == 60);
    CHECK(kept->finished == 1);
    // A mean over samples, not over batches of 16, 16 and 8.
    CHECK(trainer.validate(model, validation).at(0).second == kept->of("val_loss").back());
    const NoGrad guard;
    model.eval();
    const Tensors all = line(40, 1, dtype)->batch(data::epoch_order(40, false, 0, 0));
    const double exact = nn::mse_loss(model(all[0]), all[1]).item();
    CHECK(kept->of("val_loss").back() == Approx(exact).epsilon(1e-4).margin(1e-12));
  }
}

TEST_CASE("several labels of a sample, pairs, and text are learnt likewise") {
  struct Labels : TrainingModule {
    Labels() : linear(add<nn::Linear>("linear", 4, 3)) {}
    Tensor forward(const Tensor& x) override { return linear(x); }
    Tensor training_step(const Batch& batch, int64_t) override {
      return nn::bce_with_logits((*this)(batch[0]), batch[1]);
    }
    void validation_step(const Batch& batch, int64_t) override {
      const Tensor said = ops::cast(ops::gt((*this)(batch[0]), Tensor::scalar(0)), DType::f32);
      log("right", ops::mean(ops::cast(ops::eq(said, batch[1]), DType::f32)));
    }
    nn::Linear& linear;
  };
  struct Pairs : TrainingModule {
    Pairs()
        : embed(add<nn::Linear>("embed", 4, 2)), margin(parameter("margin", Tensor::full({}, 1))) {}
    Tensor forward(const Tensor& x) override { return embed(x); }
    Tensor sameness(const Batch& batch) {
      const Tensor apart = (*this)(batch[0]) - (*this)(batch[1]);
      return margin - ops::sum(apart * apart, {1});
    }
    Tensor training_step(const Batch& batch, int64_t) override {
      return nn::bce_with_logits(sameness(batch), batch[2]);
    }
    void validation_step(const Batch& batch, int64_t) override {
      const Tensor said = ops::cast(ops::gt(sameness(batch), Tensor::scalar(0)), DType::f32);
      log("right", ops::mean(ops::cast(ops::eq(said, batch[2]), DType::f32)));
    }
    nn::Linear& embed;
    Tensor margin;
  };
  struct Text : TrainingModule {
    Text() : net(add<nn::Sequential>("net")) {
      net.append<nn::Embedding>(5, 8);
      net.append<nn::Linear>(8, 5);
    }
    Tensor forward(const Tensor& x) override { return net(x); }
    Tensor training_step(const Batch& batch, int64_t) override {
      return ops::cross_entropy(ops::reshape((*this)(batch[0]), {-1, 5}),
                                ops::reshape(batch[1], {-1}));
    }
    void validation_step(const Batch& batch, int64_t) override {
      const Tensor said = ops::argmax((*this)(batch[0]), -1);
      log("right", ops::mean(ops::cast(ops::eq(said, batch[1]), DType::f32)));
    }
    nn::Sequential& net;
  };
  /// 0 2 4 1 3 0 2 ...: each symbol says the next.
  struct Cycle : data::TensorDataset {
    int64_t size() const override { return 32; }
    Tensors sample(int64_t i) const override {
      std::vector<int64_t> text(7);
      for (int64_t j = 0; j < 7; ++j) text[j] = 2 * (i + j) % 5;
      const Tensor all = Tensor::from(text, {7});
      return {ops::narrow(all, 0, 0, 6), ops::narrow(all, 0, 1, 6)};
    }
  };
  const auto right_after = [](TrainingModule& model, const data::TensorDatasetPtr& set) {
    Trainer trainer(quiet({.max_epochs = 40}));
    data::TensorLoader train(set, {.batch_size = 16, .shuffle = true}),
        all(set, {.batch_size = 64});
    trainer.fit(model, train, all);
    return trainer.metric("right");
  };
  manual_seed(1);
  const Tensor x = normal({64, 4}, 5);
  const Tensor truth = ops::matmul(x, normal({4, 3}, 6));
  const auto labelled =
      data::tensor_dataset({x, ops::cast(ops::gt(truth, Tensor::scalar(0)), DType::f32)});
  WithAdam<Labels> labels;
  CHECK(right_after(labels, labelled) > 0.95);

  // Twins differ by little in the first two numbers, strangers by the sign of them.
  std::vector<float> is_twin(64);
  for (size_t i = 0; i < 64; ++i) is_twin[i] = i % 2 == 0 ? 1.0f : 0.0f;
  const Tensor twin = Tensor::from(is_twin, {64, 1});
  const Tensor other =
      ops::cat({ops::narrow(x, 1, 0, 2) * (twin * 2.0 - 1.0), normal({64, 2}, 7)}, 1);
  WithAdam<Pairs> pairs;
  CHECK(right_after(pairs, data::tensor_dataset({x, other, ops::reshape(twin, {64})})) > 0.8);

  WithAdam<Text> text;
  CHECK(right_after(text, std::make_shared<Cycle>()) == 1);
}

TEST_CASE("hooks come in their order, and limits are counts or fractions") {
  CHECK(hooks_of({.max_epochs = 1, .limit_train_batches = 2, .limit_val_batches = 1}) ==
        "fit(sanity() train(epoch(b0* save b1* val() )epoch save )train )fit");
  CHECK(hooks_of(
            {.max_epochs = 1, .max_steps = -1, .limit_train_batches = 2, .limit_val_batches = 0}) ==
        "fit(train(epoch(b0* save b1* )epoch save )train )fit");
  CHECK(hooks_of({.max_epochs = 1,
                  .limit_train_batches = 0.8,
                  .val_check_interval = 3,
                  .num_sanity_val_steps = 0}) ==
        "fit(train(epoch(b0* save b1* save b2* val() save b3* )epoch save )train )fit");
  CHECK(hooks_of({.max_epochs = 2,
                  .limit_train_batches = 1,
                  .check_val_every_n_epoch = 2,
                  .num_sanity_val_steps = -1}) ==
        "fit(sanity() train(epoch(b0* )epoch save epoch(b0* val() )epoch save )train )fit");
  CHECK(
      hooks_of({.max_epochs = 2,
                .limit_train_batches = 2,
                .val_check_interval = 3,
                .check_val_every_n_epoch = {},
                .num_sanity_val_steps = 0}) ==
      "fit(train(epoch(b0* save b1* )epoch save epoch(b0* val() save b1* )epoch save )train )fit");
  // Steps of two batches, the epoch's last of one.
  CHECK(hooks_of({.max_steps = 4,
                  .val_check_interval = 0.2,
                  .num_sanity_val_steps = 0,
                  .accumulate_grad_batches = 2}) ==
        "fit(train(epoch(b0 b1* val() save b2 b3* val() save b4* val() )epoch save "
        "epoch(b0 b1* val() save )train )fit");
}

TEST_CASE("a validation within an epoch leaves the training's place, also of the same loader") {
  struct Seen : Regression {
    Tensor training_step(const Batch& batch, int64_t index) override {
      firsts.push_back(batch[0].to_vector().at(0));
      return Regression::training_step(batch, index);
    }
    std::vector<double> firsts;
  };
  const auto seen = [](bool is_same) {
    data::TensorLoader train(line(10), {.batch_size = 2, .shuffle = true, .seed = 3}),
        validation(line(10), {.batch_size = 2});
    Trainer trainer(quiet({.max_epochs = 2, .val_check_interval = 2}));
    Seen model;
    trainer.fit(model, train, is_same ? train : validation);
    return model.firsts;
  };
  const std::vector<double> apart = seen(false);
  CHECK(apart.size() == 10);
  CHECK(seen(true) == apart);
}

TEST_CASE("layers that are frozen alone stay so through a fit and its validations") {
  struct Frozen : Regression {
    Frozen() : dropout(add<nn::Dropout>("dropout", 0.5)) {}
    Tensor training_step(const Batch& batch, int64_t index) override {
      modes += is_training() ? 't' : 'e';
      modes += dropout.is_training() ? 't' : 'e';
      return Regression::training_step(batch, index);
    }
    void validation_step(const Batch& batch, int64_t index) override {
      modes += is_training() || dropout.is_training() ? '!' : '.';
      Regression::validation_step(batch, index);
    }
    void on_train_epoch_start() override {
      if (trainer().epoch() == 1) dropout.train();
    }
    nn::Dropout& dropout;
    std::string modes;
  };
  Frozen model;
  model.dropout.eval();
  Trainer trainer(quiet({.max_epochs = 2, .val_check_interval = 1}));
  data::TensorLoader train(line(4), {.batch_size = 2}), validation(line(2), {.batch_size = 2});
  trainer.fit(model, train, validation);
  CHECK(model.modes == ".te.te.tt.tt.");
  trainer.validate(model, validation);
  CHECK((model.is_training() && model.dropout.is_training()));
}

TEST_CASE("batches that add up are one larger batch, and a clipped step is as long as it may be") {
  const auto after = [](int64_t batch, int64_t accumulate, double clip) {
    const auto kept = std::make_shared<Kept>();
    Trainer trainer(quiet({.fabric = {.precision = "64-true"},
                           .max_steps = 6,
                           .accumulate_grad_batches = accumulate,
                           .gradient_clip_val = clip,
                           .track_grad_norm = true,
                           .log_every_n_steps = 1,
                           .loggers = {kept}}));
    trainer.seed_everything(1);
    Regression model;
    const std::vector<double> before = weights_of(trainer, model);
    data::TensorLoader train(line(32, 0, DType::f64), {.batch_size = batch});
    trainer.fit(model, train);
    CHECK(kept->of("grad_norm").size() == 6);
    return std::pair(weights_of(trainer, model), kept->of("grad_norm"));
  };
  const auto [whole, norms] = after(16, 1, 0);
  const auto [parts, same_norms] = after(4, 4, 0);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(whole[i] - parts[i]) < 1e-14);
  for (size_t i = 0; i < norms.size(); ++i) CHECK(norms[i] == Approx(same_norms[i]).epsilon(1e-12));

  Trainer trainer(
      quiet({.fabric = {.precision = "64-true"}, .max_steps = 1, .gradient_clip_val = 1e-3}));
  Regression model;
  std::vector<double> before;
  for (const Tensor& p : model.parameters()) {
    for (double v : p.to_vector()) before.push_back(v);
  }
  data::TensorLoader train(line(32, 0, DType::f64), {.batch_size = 16});
  trainer.fit(model, train);
  const std::vector<double> clipped = weights_of(trainer, model);
  double squares = 0;
  for (size_t i = 0; i < before.size(); ++i) squares += std::pow(clipped[i] - before[i], 2);
  // lr times the norm; clip_coefficient() divides by the norm + 1e-6.
  CHECK(std::sqrt(squares) == Approx(0.1 * 1e-3).epsilon(1e-4));
  CHECK(trainer.grad_norm() > 1e-3);
}

TEST_CASE("a step is clipped by the gradients of what its optimizer trains") {
  // What no optimizer has keeps its gradients, which add up: three equal steps would be three
  // norms.
  struct Headed : Regression {
    Headed() : head(add<nn::Linear>("head", 1, 1)) {}
    Tensor forward(const Tensor& x) override { return head(linear(x)); }
    Optimization configure_optimizers() override {
      return std::make_unique<optim::SGD>(head.named_parameters(), optim::SgdOptions{.lr = 0});
    }
    nn::Linear& head;
  };
  for (const GradientClip algorithm : {GradientClip::kNorm, GradientClip::kValue}) {
    const auto kept = std::make_shared<Kept>();
    Trainer trainer(quiet({.max_epochs = 3,
                           .gradient_clip_val = 1e-3,
                           .gradient_clip_algorithm = algorithm,
                           .track_grad_norm = true,
                           .log_every_n_steps = 1,
                           .loggers = {kept}}));
    trainer.seed_everything(1);
    Headed model;
    data::TensorLoader train(line(8), {.batch_size = 8});
    trainer.fit(model, train);
    const NoGrad guard;
    const Tensors batch = line(8)->batch(data::epoch_order(8, false, 0, 0));
    const Tensor y = model.linear(batch[0]), slope = (model.head(y) - batch[1]) * 2.0;
    const double of_weight = ops::mean(slope * y).item(), of_bias = ops::mean(slope).item();
    const auto norms = kept->of("grad_norm");
    REQUIRE(norms.size() == 3);
    for (const double norm : norms) {
      CHECK(norm == Approx(std::hypot(of_weight, of_bias)).epsilon(1e-5));
    }
  }
}

TEST_CASE("a fit ends by time, by steps, or by what a callback says") {
  data::TensorLoader train(line(8), {.batch_size = 2});
  {
    Trainer trainer(quiet({.max_time = 200ms}));
    Regression model;
    trainer.fit(model, train);
    CHECK(trainer.seconds() >= 0.2);
    CHECK(trainer.global_step() > 0);
    CHECK(trainer.stop_reason() == "max_time = 0.2 s");
  }
  struct Enough : Callback {
    void on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor& loss, const Batch&,
                            int64_t) override {
      CHECK(!loss.requires_grad());
      if (trainer.global_step() == 3) trainer.stop("enough");
    }
  };
  Trainer trainer(
      quiet({.max_epochs = -1, .max_steps = 100, .callbacks = {std::make_shared<Enough>()}}));
  Regression model;
  trainer.fit(model, train);
  CHECK(trainer.global_step() == 3);
  CHECK(trainer.batch() == 3);
  CHECK(trainer.stop_reason() == "enough");
  CHECK_THROWS_WITH(trainer.fit(model, train), Contains("another Trainer"));
}

TEST_CASE("the table of epochs has what a later epoch is the first to log") {
  std::FILE* const out = std::tmpfile();
  REQUIRE(out);
  ConsoleLogger logger(out);
  logger.begin(0);
  logger.end_epoch(0, 2, {{"train_loss", 0.5}, {"train_loss_step", 1}});
  logger.end_epoch(1, 4, {{"train_loss", 0.25}, {"train_loss_step", 1}, {"val_loss", 0.125}});
  logger.end_epoch(2, 6, {{"train_loss", 0.2}, {"train_loss_step", 1}, {"val_loss", 0.125}});
  std::rewind(out);
  std::string text;
  for (int c = 0; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
  std::fclose(out);
  CHECK_THAT(text, Contains("val_loss") && Contains("0.125"));
  CHECK_THAT(text, !Contains("_step"));
  CHECK(std::ranges::count(text, '\n') >= 5);  // three rows under two headings
}

TEST_CASE("a directory gets the figures and the states of one run") {
  const std::string directory = scratch("run");
  data::TensorLoader train(line(8), {.batch_size = 2}), validation(line(4, 1), {.batch_size = 2});
  const TrainerOptions options =
      quiet({.max_epochs = 2, .log_every_n_steps = 4, .directory = directory});
  Regression model;
  {
    Trainer trainer(options);
    trainer.fit(model, train, validation);
  }
  const std::string lines = io::read_text(directory + "/metrics.jsonl");
  CHECK_THAT(lines, Contains("{\"step\":4,\"epoch\":0.0,\"train_loss_step\":") &&
                        Contains("\"lr\":0.1") &&
                        Contains("{\"step\":8,\"epoch\":1.0,\"val_loss\":"));
  CHECK_THAT(io::read_text(directory + "/metrics.csv"), Contains("step,epoch,"));
  int curves = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    curves += entry.path().filename().string().starts_with("events.out.tfevents");
  }
  CHECK(curves == 1);
  CHECK(std::filesystem::exists(directory + "/checkpoints/last.safetensors"));
  CHECK(std::filesystem::exists(directory + "/checkpoints/epoch=2-step=8.safetensors"));
  CHECK(!std::filesystem::exists(directory + "/checkpoints/epoch=1-step=4.safetensors"));
  Regression other;
  CHECK_THROWS_WITH(Trainer(options).fit(other, train, validation),
                    Contains("already holds a run"));
  // A place that is none is an error before anything is trained.
  std::ofstream(directory + "/file") << "";
  struct Never : Regression {
    Tensor training_step(const Batch&, int64_t) override { throw std::logic_error("trained"); }
    void validation_step(const Batch&, int64_t) override { throw std::logic_error("measured"); }
  };
  for (const auto& logger : std::vector<std::shared_ptr<Logger>>{
           std::make_shared<MetricsLogger>(directory + "/file/below"),
           std::make_shared<TensorBoardLogger>(directory + "/file/below")}) {
    Never never;
    Trainer trainer(quiet({.max_epochs = 1, .loggers = {logger}}));
    CHECK_THROWS_WITH(trainer.fit(never, train, validation), Contains("file/below"));
  }
  Never never;
  Trainer trainer(quiet({.max_epochs = 1, .directory = directory + "/file/below"}));
  CHECK_THROWS_WITH(trainer.fit(never, train, validation), Contains("file/below"));
}

TEST_CASE("a fit that goes on leaves the figures of one that was not interrupted") {
  struct Broken : Regression {
    Tensor training_step(const Batch& batch, int64_t index) override {
      if (trainer().global_step() == throws_at) throw std::runtime_error("it broke");
      return Regression::training_step(batch, index);
    }
    int64_t throws_at = -1;
  };
  data::TensorLoader train(line(8), {.batch_size = 2}), validation(line(4, 1), {.batch_size = 2});
  const auto fit = [&](const std::string& directory, int64_t throws_at, const std::string& from) {
    Trainer trainer(quiet({.max_epochs = 3, .log_every_n_steps = 1, .directory = directory}));
    trainer.seed_everything(1);
    Broken model;
    model.throws_at = throws_at;
    trainer.fit(model, train, validation, from);
  };
  const std::string whole = scratch("figures_whole"), broken = scratch("figures_broken");
  fit(whole, -1, "");
  CHECK_THROWS_WITH(fit(broken, 7, ""), "it broke");  // three steps after an epoch's end
  const auto append = [&](const char* name, const char* text) {
    std::ofstream(broken + "/" + name, std::ios::app | std::ios::binary) << text;
  };
  append("metrics.jsonl", "{\"step\":8,\"lo");  // killed
  append("metrics.csv", "8,1.");
  fit(broken, -1, broken + "/checkpoints/last.safetensors");
  for (const char* name : {"/metrics.jsonl", "/metrics.csv"}) {
    CHECK(io::read_text(broken + name) == io::read_text(whole + name));
  }
  // TensorBoard keeps step 4's points, too: the session of the second file starts at step 5.
  using namespace std::string_literals;
  int sessions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(broken)) {
    if (!entry.path().filename().string().starts_with("events.out.tfevents")) continue;
    sessions += io::read_text(entry.path()).find("\x10\x05\x3a\x02\x08\x01"s) != std::string::npos;
  }
  CHECK(sessions == 1);
}

TEST_CASE("images of a data::Loader are a batch of images and labels") {
  struct Mean : TrainingModule {
    Mean() : linear(add<nn::Linear>("linear", 3, 10)) {}
    Tensor forward(const Tensor& x) override { return linear(ops::mean(x, {2, 3})); }
    Tensor training_step(const Batch& batch, int64_t) override {
      CHECK(batch[0].shape() == Shape({8, 3, 16, 16}));
      CHECK(batch[1].dtype() == DType::i64);
      return ops::cross_entropy((*this)(batch[0]), batch[1]);
    }
    Optimization configure_optimizers() override {
      return std::make_unique<optim::SGD>(named_parameters(), optim::SgdOptions{.lr = 0.1});
    }
    nn::Linear& linear;
  };
  data::Loader loader(data::open_data("builtin", 1).train,
                      {.batch_size = 8, .shuffle = true, .preprocess = {.size = 16}});
  Trainer trainer(quiet({.max_steps = 2}));
  Mean model;
  trainer.fit(model, loader);
  CHECK(trainer.global_step() == 2);
}

TEST_CASE("each Trainer shares out a data::Loader anew, unless the caller has") {
  const data::LoaderOptions options = {.batch_size = 4, .preprocess = {.size = 16}};
  data::Loader loader(data::open_data("builtin", 1).train, options);
  const int64_t all = loader.batches();
  const BatchSource source(loader);
  const auto given = [&](const Fabric& fabric) {
    const std::unique_ptr<RankBatches> batches = source.share(fabric);
    batches->seek({0, 0});
    return std::pair(batches->next().value()[0].size(0), batches->per_epoch());
  };
  Fabric one{FabricOptions()}, two({.devices = 2, .strategy = {.name = "dp"}});
  one.launch(nullptr);
  two.launch(nullptr);
  const auto of_one = std::pair(int64_t{4}, all), of_two = std::pair(int64_t{8}, (all + 1) / 2);
  CHECK(given(two) == of_two);
  CHECK(given(two) == of_two);
  CHECK(given(one) == of_one);
  CHECK(given(two) == of_two);
  loader.set_options(options);
  two.setup_dataloader(loader);
  CHECK(given(one) == of_two);
}

/// Stages of a pipeline, and layers that are cut.
struct Deep : TrainingModule {
  Deep() : first(add<nn::Linear>("first", 3, 8)), second(add<nn::Linear>("second", 8, 1)) {}
  Tensor forward(const Tensor& x) override { return second(ops::gelu(first(x))); }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    const Tensor mean = nn::mse_loss(output, batch[1]);
    log("train_loss", mean, {.on_step = true});
    return mean;
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
  }
  Optimization configure_optimizers() override {
    return std::make_unique<optim::SGD>(named_parameters(), optim::SgdOptions{.lr = 0.1});
  }
  nn::ModelStructure structure() override {
    nn::ModelStructure structure;
    structure.mlps = {{&first, &second}};
    structure.segments = {
        {"first", [this](const Tensor& x) { return ops::gelu(first(x)); }, {"first"}},
        {"second", [this](const Tensor& x) { return second(x); }, {"second"}}};
    return structure;
  }
  nn::Linear &first, &second;
};

TEST_CASE("several ranks fit what one does, in step and with its figures") {
  struct Run {
    std::vector<double> weights;
    double loss = 0, mean = 0;
    int64_t steps = 0;
  };
  const auto fit = []<class Model>(const FabricOptions& fabric,
                                   const dist::CommunicatorPtr& world) {
    TrainerOptions options = quiet({.fabric = fabric,
                                    .max_epochs = 3,
                                    .accumulate_grad_batches = 2,
                                    .gradient_clip_val = 0.5});
    options.fabric.precision = "64-true";
    options.fabric.split_batches = true;
    Trainer trainer(options);
    trainer.launch(world);
    trainer.seed_everything(1);
    Model model;
    // The last batch of validation has fewer samples than there are in a share.
    data::TensorLoader train(line(32, 0, DType::f64), {.batch_size = 8, .shuffle = true});
    data::TensorLoader validation(line(9, 1, DType::f64), {.batch_size = 8});
    trainer.fit(model, train, validation);
    return Run{weights_of(trainer, model), trainer.metric("val_loss"), trainer.metric("train_loss"),
               trainer.global_step()};
  };
  const auto check_close = [](const Run& two, const Run& one) {
    REQUIRE(two.weights.size() == one.weights.size());
    for (size_t i = 0; i < one.weights.size(); ++i) {
      CHECK(std::abs(two.weights[i] - one.weights[i]) < 1e-13);
    }
    CHECK(two.loss == Approx(one.loss).epsilon(1e-10));
    CHECK(two.mean == Approx(one.mean).epsilon(1e-10));
    CHECK(two.steps == one.steps);
  };
  const Run one = fit.operator()<Regression>({}, nullptr);
  for (const std::string strategy : {"dp", "ddp", "fsdp", "zero1"}) {
    INFO(strategy);
    const FabricOptions fabric = {.devices = 2, .strategy = {.name = strategy}};
    Run two;
    if (strategy == "dp") {  // its ranks are threads
      two = fit.operator()<Regression>(fabric, nullptr);
    } else {
      dist::run_ranks(2, [&](dist::Communicator& c) {
        const Run mine = fit.operator()<Regression>(fabric, borrowed(c));
        if (c.rank() == 0) two = mine;
      });
    }
    check_close(two, one);
  }
  const Run whole = fit.operator()<Deep>({}, nullptr);
  for (const std::string strategy : {"pipeline", "tp"}) {
    INFO(strategy);
    Run two;
    dist::run_ranks(2, [&](dist::Communicator& c) {
      const Run mine =
          fit.operator()<Deep>({.devices = 2, .strategy = {.name = strategy}}, borrowed(c));
      if (c.rank() == 0) two = mine;
    });
    check_close(two, whole);
  }
  // One rank's word ends all.
  dist::run_ranks(2, [&](dist::Communicator& c) {
    struct Stop : Callback {
      void on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor&, const Batch&,
                              int64_t index) override {
        if (index == 1 && trainer.fabric().rank() == 1) trainer.stop("enough");
      }
    };
    Trainer trainer(quiet({.fabric = {.devices = 2, .strategy = {.name = "ddp"}},
                           .max_epochs = 3,
                           .callbacks = {std::make_shared<Stop>()}}));
    trainer.launch(borrowed(c));
    Regression model;
    data::TensorLoader train(line(32), {.batch_size = 4});
    trainer.fit(model, train);
    WEFT_CHECK(trainer.global_step() == 2, "{} steps", trainer.global_step());
  });
}

TEST_CASE("a pipeline trains on an epoch's last batch that has fewer samples than micro-batches") {
  struct Run {
    std::vector<double> weights;
    double mean = 0;
    int64_t steps = 0;
  };
  const auto fit = [](int64_t rows, const FabricOptions& fabric,
                      const dist::CommunicatorPtr& world) {
    TrainerOptions options = quiet({.fabric = fabric, .max_epochs = 2});
    options.fabric.precision = "64-true";
    Trainer trainer(options);
    trainer.launch(world);
    trainer.seed_everything(1);
    Deep model;
    data::TensorLoader train(line(rows, 0, DType::f64), {.batch_size = 4});
    trainer.fit(model, train);
    return Run{weights_of(trainer, model), trainer.metric("train_loss"), trainer.global_step()};
  };
  for (const int64_t rows : {8, 9, 10, 11}) {
    INFO(rows << " rows, in micro-batches of one");
    const Run one = fit(rows, {}, nullptr);
    Run two;
    dist::run_ranks(2, [&](dist::Communicator& c) {
      const Run mine = fit(rows, {.devices = 2, .strategy = {.name = "pipeline"}}, borrowed(c));
      if (c.rank() == 0) two = mine;
    });
    REQUIRE(two.weights.size() == one.weights.size());
    for (size_t i = 0; i < one.weights.size(); ++i) {
      CHECK(std::abs(two.weights[i] - one.weights[i]) < 1e-13);
    }
    CHECK(two.mean == Approx(one.mean).epsilon(1e-10));
    CHECK(two.steps == one.steps);
  }
}

/// Compresses three numbers to two: as a whole, or part by part.
template <bool kByParts>
struct Autoencoder : TrainingModule {
  Autoencoder()
      : encoder(add<nn::Linear>("encoder", 3, 2)), decoder(add<nn::Linear>("decoder", 2, 3)) {}
  Tensor forward(const Tensor& x) override { return decoder(encoder(x)); }
  nn::ModelStructure structure() override {
    nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
    structure.mlps = {{&encoder, &decoder}};
    return structure;
  }
  Tensor error(const Batch& batch) {
    return nn::mse_loss(kByParts ? decoder(encoder(batch[0])) : (*this)(batch[0]), batch[0]);
  }
  Tensor training_step(const Batch& batch, int64_t) override { return error(batch); }
  void validation_step(const Batch& batch, int64_t) override { log("val_loss", error(batch)); }
  Tensor predict_step(const Batch& batch, int64_t) override { return encoder(batch[0]); }
  Optimization configure_optimizers() override {
    return std::make_unique<optim::SGD>(named_parameters(), optim::SgdOptions{.lr = 0.1});
  }
  nn::Linear &encoder, &decoder;
};

TEST_CASE("steps that call a module's parts are the steps that call the module") {
  struct Run {
    std::vector<double> weights, codes;
    double loss = 0;
  };
  const auto fit = []<class Model>(const FabricOptions& fabric,
                                   const dist::CommunicatorPtr& world) {
    Trainer trainer(quiet({.fabric = fabric, .max_epochs = 2}));
    trainer.launch(world);
    trainer.seed_everything(1);
    Model model;
    data::TensorLoader train(line(16), {.batch_size = 4}),
        validation(line(8, 1), {.batch_size = 4});
    trainer.fit(model, train, validation);
    return Run{weights_of(trainer, model), trainer.predict(model, validation).at(0).to_vector(),
               trainer.metric("val_loss")};
  };
  for (const std::string precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    for (const std::string strategy : {"auto", "ddp", "fsdp", "tp"}) {
      INFO(precision << ", " << strategy);
      const int ranks = strategy == "auto" ? 1 : 2;
      const FabricOptions fabric = {
          .devices = ranks, .precision = precision, .strategy = {.name = strategy}};
      dist::run_ranks(ranks, [&](dist::Communicator& c) {
        const Run whole = fit.operator()<Autoencoder<false>>(fabric, borrowed(c));
        const Run parts = fit.operator()<Autoencoder<true>>(fabric, borrowed(c));
        WEFT_CHECK(parts.weights == whole.weights, "rank {}: other weights", c.rank());
        WEFT_CHECK(parts.loss == whole.loss, "rank {}: other losses", c.rank());
        WEFT_CHECK(parts.codes == whole.codes && !parts.codes.empty(), "rank {}", c.rank());
      });
    }
  }
  CHECK_THROWS_WITH(
      fit.operator()<Autoencoder<true>>({.devices = 2, .strategy = {.name = "dp"}}, nullptr),
      Contains("\"encoder\", a part of a model that was set up"));
}

TEST_CASE("a step whose gradients are not finite is left out, or ends the fit by name") {
  struct Poisoned : Regression {
    Tensor training_step(const Batch& batch, int64_t index) override {
      const Tensor loss = Regression::training_step(batch, index);
      return index == 2 ? loss * INFINITY : loss;
    }
  };
  const auto fit = [](Nonfinite nonfinite) {
    Trainer trainer(quiet({.max_epochs = 1, .nonfinite = nonfinite}));
    trainer.seed_everything(3);
    Poisoned module;
    data::TensorLoader loader(line(50), {.batch_size = 10});
    trainer.fit(module, loader);
    CHECK(trainer.global_step() == 5);
    return weights_of(trainer, module);
  };
  for (const double w : fit(Nonfinite::kSkip)) CHECK(std::isfinite(w));
  for (const double w : fit(Nonfinite::kTake)) CHECK(!std::isfinite(w));
  CHECK_THROWS_WITH(
      fit(Nonfinite::kStop),
      Catch::StartsWith("training diverged at step 3: a gradient is not finite (") &&
          Catch::EndsWith("first in the gradient of linear.bias); try a lower learning rate, or "
                          "leave such steps out (nonfinite: skip)"));
}

TEST_CASE("steps around a model of another class train and save that model") {
  struct Around : TrainingModule {
    explicit Around(Regression& other) : other(other) {}
    nn::Module& model() override { return other; }
    Tensor training_step(const Batch& batch, int64_t) override {
      return nn::mse_loss(model()(batch[0]), batch[1]);
    }
    Optimization configure_optimizers() override { return other.configure_optimizers(); }
    Regression& other;
  };
  std::vector<double> weights[2];
  for (const bool is_around : {false, true}) {
    Trainer trainer(quiet({.max_epochs = 2}));
    trainer.seed_everything(3);
    Regression module;
    Around around(module);
    data::TensorLoader loader(line(40), {.batch_size = 8});
    if (is_around) {
      trainer.fit(around, loader);
    } else {
      trainer.fit(module, loader);
    }
    weights[is_around] = weights_of(trainer, module);
    const std::string file = scratch("around.safetensors");
    trainer.fabric().save(file);
    CHECK(io::read_safetensors(file).tensors.at(0).first.starts_with("linear."));
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("trap: one Trainer after another fits a module, whether the first lives or not") {
  data::TensorLoader train(line(16), {.batch_size = 4});
  const auto epochs = [](int64_t count) { return quiet({.max_epochs = count}); };
  const auto all_of = [](const nn::Module& module) {
    std::vector<double> all;
    for (const auto& [name, tensor] : module.state_dict()) {
      for (const double v : tensor.to_vector()) all.push_back(v);
    }
    return all;
  };
  Trainer whole(epochs(3));
  whole.seed_everything(1);
  Regression straight;
  whole.fit(straight, train);

  Trainer first(epochs(1)), third(epochs(1));
  first.seed_everything(1);
  Regression model;
  first.fit(model, train);
  Trainer(epochs(1)).fit(model, train);
  CHECK(all_of(model).size() == 4);
  third.fit(model, train);
  CHECK(all_of(model) == all_of(straight));
  const NamedValues values = third.validate(model, train);
  CHECK(first.validate(model, train) == values);
  CHECK(first.predict(model, train).size() == 4);
  CHECK(all_of(model) == all_of(straight));

  // Not while another one is at work.
  struct Meddler : Callback {
    Meddler(Trainer& other, data::TensorLoader& loader) : other(other), loader(loader) {}
    void on_train_epoch_start(Trainer&, TrainingModule& module) override {
      CHECK_THROWS_WITH(other.predict(module, loader),
                        Contains("another Trainer is at work on the module"));
      CHECK_THROWS_WITH(other.fit(module, loader),
                        Contains("another Trainer is at work on the module"));
    }
    Trainer& other;
    data::TensorLoader& loader;
  };
  Trainer idle(epochs(1));
  TrainerOptions options = epochs(1);
  options.callbacks = {std::make_shared<Meddler>(idle, train)};
  Trainer(options).fit(model, train);
  CHECK_NOTHROW(idle.fit(model, train));

  for (const std::string strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    dist::run_ranks(2, [&](dist::Communicator& c) {
      TrainerOptions two = epochs(1);
      two.fabric = {.devices = 2, .strategy = {.name = strategy}};
      Trainer before(two), after(two);
      before.launch(borrowed(c));
      after.launch(borrowed(c));
      before.seed_everything(1);
      Regression module;
      data::TensorLoader loader(line(16), {.batch_size = 4});
      before.fit(module, loader);
      std::string message;
      try {
        after.fit(module, loader);
      } catch (const Error& error) {
        message = error.what();
      }
      const bool is_told = message.find("strategy fsdp does not leave it whole") != message.npos;
      WEFT_CHECK(strategy == "ddp" ? message.empty() : is_told, "\"{}\"", message);
    });
  }
}

TEST_CASE("what cannot work is said by name") {
  const auto refused = [](const TrainerOptions& options, const std::string& part) {
    CHECK_THROWS_WITH(Trainer(options), Contains(part));
  };
  refused({}, "say when to stop");
  refused({.max_epochs = -1}, "say when to stop");
  refused({.max_epochs = 0}, "max_epochs: expected a positive number, got 0");
  refused({.max_steps = -1}, "say when to stop");
  refused({.max_steps = -2}, "max_steps: expected a positive number, got -2");
  refused({.max_time = 0s}, "max_time");
  refused({.max_epochs = 1, .limit_train_batches = 0},
          "limit_train_batches: expected a positive count or a fraction in (0, 1], got 0");
  refused({.max_epochs = 1, .limit_val_batches = 1.5}, "limit_val_batches");
  refused({.max_epochs = 1, .limit_val_batches = -0.5}, "got -0.5");
  refused({.max_epochs = 1, .val_check_interval = NAN}, "val_check_interval");
  refused({.max_epochs = 1, .check_val_every_n_epoch = 0}, "check_val_every_n_epoch");
  refused({.max_epochs = 1, .check_val_every_n_epoch = {}}, "val_check_interval");
  refused({.max_epochs = 1, .num_sanity_val_steps = -2}, "num_sanity_val_steps");
  refused({.max_epochs = 1, .accumulate_grad_batches = 0}, "accumulate_grad_batches");
  refused({.max_epochs = 1, .gradient_clip_val = -1}, "gradient_clip_val");
  refused({.fabric = {.accumulate = 2}, .max_epochs = 1}, "accumulate_grad_batches instead");
  refused({.fabric = {.loggers = {std::make_shared<MetricsLogger>("figures")}}, .max_epochs = 1},
          "set its own loggers and callbacks");

  data::TensorLoader train(line(8), {.batch_size = 2});
  const auto fails = [&]<class Module>(Module&& model, TrainerOptions options) {
    options.max_epochs = 1;
    try {
      Trainer(quiet(options)).fit(model, train, train);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(fails(Regression(), {.limit_train_batches = 0.1}),
             Contains("limit_train_batches: 0.1 of 4 batches is none"));
  CHECK_THAT(fails(Regression(), {.val_check_interval = 5}),
             Contains("val_check_interval: 5 batches, but an epoch has 4"));
  CHECK_THAT(fails(Regression(),
                   {.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{})}}),
             Contains("give its dirpath, or the Trainer's directory"));
  struct Silent : Regression {
    Tensor training_step(const Batch&, int64_t) override { return {}; }
  };
  CHECK_THAT(fails(Silent(), {}), Contains("return one number, the loss, got nothing"));
  struct Wide : Regression {
    Tensor training_step(const Batch& batch, int64_t) override { return (*this)(batch[0]); }
  };
  CHECK_THAT(fails(Wide(), {}), Contains("the loss, got"));
  struct Loud : Regression {
    void validation_step(const Batch& batch, int64_t) override { log("all", batch[0]); }
  };
  CHECK_THAT(fails(Loud(), {}), Contains("log: \"all\": expected one number"));
  CHECK_THROWS_WITH(Regression().trainer(), Contains("no Trainer is at work"));
  // Before a model is set up, of which a strategy may leave parts.
  struct Foreign : Regression {
    Optimization configure_optimizers() override {
      return std::make_unique<optim::SGD>(foreign.named_parameters(), optim::SgdOptions{});
    }
    nn::Linear foreign{3, 1};
  };
  Foreign foreign;
  Trainer trainer(quiet({.max_epochs = 1}));
  CHECK_THROWS_WITH(trainer.fit(foreign, train), Contains("is of no model that was set up"));
  CHECK(Fabric::of(foreign) == nullptr);
}
