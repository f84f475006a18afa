// What is kept of a fit, how one goes on, and the callbacks that are there.
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dist/comm/in_process.h"
#include "io/safetensors.h"
#include "optim/adam.h"
#include "tests/json_damage.h"
#include "train/trainer/early_stopping.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/testing.h"
#include "train/trainer/watch_layers.h"
#include "train/trainer/weight_averaging.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

/// With a random stream, an optimizer with state, a schedule, and figures of several kinds.
struct Noisy : TrainingModule {
  explicit Noisy(int64_t width = 8) : net(add<nn::Sequential>("net")) {
    net.append<nn::Linear>(3, width);
    net.append<nn::Dropout>(0.5);
    net.append<nn::GELU>();
    net.append<nn::Linear>(width, 1);
  }
  Tensor forward(const Tensor& x) override { return net(x); }
  nn::ModelStructure structure() override {
    return nn::ModelStructure(nn::wrap_modules<nn::Linear>());
  }
  Tensor training_step(const Batch& batch, int64_t index) override {
    if (trainer().global_step() == throws_at) throw std::runtime_error("it broke");
    const Tensor loss = nn::mse_loss((*this)(batch[0]), batch[1]);
    log("train_loss", loss);
    log("index", static_cast<double>(index));
    return loss;
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
  }
  Optimization configure_optimizers() override {
    return {std::make_unique<optim::AdamW>(named_parameters(), optim::AdamWOptions{.lr = 0.02}),
            optim::cosine(trainer().estimated_steps())};
  }
  nn::Sequential& net;
  int64_t throws_at = -1;
};

/// Validations that find what they are told, one number an epoch.
struct Scripted : Regression {
  explicit Scripted(std::vector<double> script) : script(std::move(script)) {}
  void validation_step(const Batch&, int64_t) override {
    log("score", script.at(trainer().epoch()));
  }
  std::vector<double> script;
};

std::set<std::string> files_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Fits Scripted with a callback, an epoch for each number.
template <class T>
std::shared_ptr<T> follow(const std::vector<double>& script, std::shared_ptr<T> callback,
                          std::optional<int64_t> epochs = {}) {
  Trainer trainer(quiet({.max_epochs = epochs.value_or(script.size()),
                         .num_sanity_val_steps = 0,
                         .callbacks = {callback}}));
  Scripted model(script);
  data::TensorLoader train(line(8), {.batch_size = 4});
  trainer.fit(model, train, train);
  return callback;
}

dist::CommunicatorPtr borrowed(dist::Communicator& c) {
  return {&c, [](dist::Communicator*) {}};
}

/// A fit of three epochs of five batches. Its states are kept in `directory`, and the last of all
/// in `end`.
void fit_noisy(const FabricOptions& fabric, const dist::CommunicatorPtr& world,
               const std::string& directory, const std::string& end, const std::string& from = {}) {
  const auto checkpoint = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .dirpath = directory, .filename = "{step}", .save_top_k = -1, .every_n_train_steps = 1});
  const auto stopping =
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss", .patience = 100});
  const auto average = std::make_shared<EmaWeightAveraging>(EmaOptions{.decay = 0.9});
  Trainer trainer(quiet({.fabric = fabric,
                         .max_epochs = 3,
                         .val_check_interval = 2,
                         .log_every_n_steps = 1,
                         .callbacks = {checkpoint, stopping, average}}));
  trainer.launch(world);
  // What a program does before it goes on must not matter.
  trainer.seed_everything(from.empty() ? 1 : 2);
  Noisy model;
  data::TensorLoader train(line(18), {.batch_size = 4 / trainer.fabric().size(), .shuffle = true});
  data::TensorLoader validation(line(6, 1), {.batch_size = 4});
  trainer.fit(model, train, validation, from);
  trainer.save_checkpoint(end);
}

/// Everything in a file, by its bits, but for the time that has passed.
std::pair<std::map<std::string, std::vector<double>>, nlohmann::json> all_of(
    const std::string& path) {
  const io::SafeTensors file = io::read_safetensors(path);
  std::map<std::string, std::vector<double>> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors[name] = tensor.to_vector();
  nlohmann::json state = nlohmann::json::parse(file.metadata.at("weft.state"));
  state.at("trainer").at("value").erase("seconds");
  for (auto& [name, entry] : state.items()) {
    if (name.starts_with("callback:ModelCheckpoint")) entry.at("value").erase("saved_at");
  }
  return {tensors, state};
}

}  // namespace

TEST_CASE("a fit goes on with the same bits from any step of any epoch") {
  const std::string directory = scratch("noisy"), end = scratch("noisy_end"),
                    again = scratch("noisy_again");
  fit_noisy({}, nullptr, directory, end);
  const auto whole = all_of(end);
  CHECK(whole.first.contains("module.net.0.weight"));
  CHECK(whole.first.contains("tensors:EmaWeightAveraging.net.3.weight.average"));
  CHECK(whole.first.contains("tensors:EmaWeightAveraging.net.3.weight.weight"));
  CHECK(whole.second.at("trainer").at("value").at("global_step") == 15);
  // In the middle of an epoch, before and after a validation, at an epoch's end, and at the end.
  for (const int step : {1, 2, 8, 10, 12, 15}) {
    INFO("from step " << step);
    const std::string from = scratch("noisy_from");
    std::filesystem::copy_file(directory + "/step=" + std::to_string(step) + ".safetensors", from);
    fit_noisy({}, nullptr, directory, again, from);
    const auto resumed = all_of(again);
    CHECK(resumed.first == whole.first);
    CHECK(resumed.second == whole.second);
  }
}

namespace {

/// Of widths that fp8 multiplies, with an optimizer that its levels take.
struct Averaged : TrainingModule {
  Averaged() : in(add<nn::Linear>("in", 16, 32)), out(add<nn::Linear>("out", 32, 16)) {}
  Tensor forward(const Tensor& x) override { return out(ops::gelu(in(x))); }
  nn::ModelStructure structure() override {
    nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
    structure.segments = {{"in", [this](const Tensor& x) { return ops::gelu(in(x)); }, {"in"}},
                          {"out", [this](const Tensor& x) { return out(x); }, {"out"}}};
    structure.mlps = {{&in, &out}};
    return structure;
  }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    const Tensor mean = nn::mse_loss(output, batch[1]);
    log("train_loss", mean);
    return mean;
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
  }
  Optimization configure_optimizers() override {
    return std::make_unique<optim::AdamW>(named_parameters(),
                                          optim::AdamWOptions{.lr = 0.01, .eps = 1e-3});
  }
  nn::Linear &in, &out;
};

data::TensorDatasetPtr pairs(int64_t rows, uint64_t stream, DType dtype = DType::f32) {
  return data::tensor_dataset(
      {normal({rows, 16}, stream, dtype), normal({rows, 16}, stream + 10, dtype)});
}

/// So many epochs of Averaged, whose last state is in `end`. The best by "val_loss", and the last
/// that it has saved itself, in `directory`, where one is given.
std::shared_ptr<ModelCheckpoint> fit_averaged(const FabricOptions& fabric,
                                              const dist::CommunicatorPtr& world, int64_t epochs,
                                              const std::string& end, const std::string& from = {},
                                              const std::string& directory = {}) {
  std::vector<std::shared_ptr<Callback>> callbacks = {
      std::make_shared<EmaWeightAveraging>(EmaOptions{.decay = 0.7})};
  std::shared_ptr<ModelCheckpoint> best;
  if (!directory.empty()) {
    best = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = directory, .monitor = "val_loss", .save_last = true});
    callbacks.push_back(best);
  }
  Trainer trainer(quiet({.fabric = fabric, .max_epochs = epochs, .callbacks = callbacks}));
  trainer.launch(world);
  trainer.seed_everything(1);
  Averaged model;
  const DType dtype = fabric.precision == "64-true" ? DType::f64 : DType::f32;
  data::TensorLoader train(pairs(24, 0, dtype), {.batch_size = 4, .shuffle = true});
  data::TensorLoader validation(pairs(8, 1, dtype), {.batch_size = 4});
  trainer.fit(model, train, validation, from);
  trainer.save_checkpoint(end);
  return best;
}

}  // namespace

TEST_CASE("averages go on with the same bits in every precision, also from after a fit") {
  const auto [precision, level] = GENERATE(table<std::string, std::string>({{"32-true", ""},
                                                                            {"64-true", ""},
                                                                            {"bf16-true", ""},
                                                                            {"16-true", ""},
                                                                            {"fp8", "O2"},
                                                                            {"fp8", "O3"}}));
  INFO(precision << " " << level);
  const FabricOptions fabric = {.precision = precision, .numerics = {.fp8_level = level}};
  const std::string first = scratch("averages_first"), whole = scratch("averages_whole"),
                    again = scratch("averages_again"), kept = scratch("averages_kept");
  fit_averaged(fabric, nullptr, 3, whole);
  const auto expected = all_of(whole);
  for (const double w : expected.first.at("tensors:EmaWeightAveraging.in.weight.average")) {
    REQUIRE(std::isfinite(w));
  }
  fit_averaged(fabric, nullptr, 2, first);
  fit_averaged(fabric, nullptr, 3, again, first);
  CHECK(all_of(again) == expected);
  // And from what was saved in the fit, before its end.
  const auto best = fit_averaged(fabric, nullptr, 2, first, {}, kept);
  fit_averaged(fabric, nullptr, 3, again, best->last_model_path());
  CHECK(all_of(again).first == expected.first);
}

TEST_CASE("a checkpoint of averages is measured by the averages, as it was ranked") {
  const auto [strategy, type] = GENERATE(table<std::string, std::string>({{"auto", "full"},
                                                                          {"ddp", "full"},
                                                                          {"fsdp", "full"},
                                                                          {"fsdp", "sharded"},
                                                                          {"tp", "full"},
                                                                          {"pipeline", "full"}}));
  INFO(strategy << " " << type);
  const int ranks = strategy == "auto" ? 1 : 2;
  const FabricOptions fabric = {
      .devices = ranks, .strategy = {.name = strategy}, .state_dict_type = type};
  const std::string kept = scratch("measured_averages"), end = scratch("measured_end"),
                    first = scratch("measured_first"), again = scratch("measured_again");
  std::string path;
  double score = NAN;
  const auto each = [&](dist::Communicator* c) {
    const dist::CommunicatorPtr world = c ? borrowed(*c) : nullptr;
    const auto best = fit_averaged(fabric, world, 2, end, {}, kept);
    if (!world || world->rank() == 0) {
      path = best->best_model_path();
      score = best->best_model_score();
    }
    // It goes on from the weights beside the averages, too.
    fit_averaged(fabric, world, 1, first);
    fit_averaged(fabric, world, 2, again, first);
  };
  if (ranks == 1) each(nullptr);
  if (ranks > 1) dist::run_ranks(ranks, [&](dist::Communicator& c) { each(&c); });
  if (type == "full") {
    const auto resumed = all_of(again).first, whole = all_of(end).first;
    CHECK(resumed == whole);
    CHECK(whole.at("module.in.weight") != whole.at("tensors:EmaWeightAveraging.in.weight.weight"));
  }
  // Whoever loads it, without the callback.
  Trainer other(quiet({.max_epochs = 1}));
  Averaged fresh;
  data::TensorLoader validation(pairs(8, 1), {.batch_size = 4});
  CHECK(other.validate(fresh, validation, path)[0].second == Approx(score).epsilon(1e-5));
}

TEST_CASE("a save that fails gives the weights back") {
  struct Failing : Callback {
    void on_save_point(Trainer& trainer, TrainingModule& module) override {
      const std::vector<double> before = weights_of(trainer, module);
      CHECK_THROWS_AS(trainer.save_checkpoint(taken), Error);
      CHECK(weights_of(trainer, module) == before);
      ++saves;
    }
    std::string taken;
    int saves = 0;
  };
  const auto failing = std::make_shared<Failing>();
  failing->taken = scratch("taken.safetensors");
  std::filesystem::create_directories(failing->taken + "/below");
  Trainer trainer(
      quiet({.max_epochs = 1,
             .callbacks = {std::make_shared<EmaWeightAveraging>(EmaOptions{0.7}), failing}}));
  Regression model;
  data::TensorLoader train(line(8), {.batch_size = 4});
  trainer.fit(model, train);
  CHECK(failing->saves == 2);
}

TEST_CASE("a fit goes on in another precision, with the first loss scale where none was saved") {
  const std::string path = scratch("precisions") + "/last.safetensors";
  data::TensorLoader train(line(8), {.batch_size = 4});
  const auto scale_after = [&](const std::string& precision, int64_t epochs,
                               const std::string& from, double init_scale) {
    Trainer trainer(quiet(
        {.fabric = {.precision = precision, .numerics = {.loss_scale = {.init_scale = init_scale}}},
         .max_epochs = epochs}));
    trainer.seed_everything(1);
    Regression model;
    trainer.fit(model, train, {}, from);
    CHECK(trainer.global_step() == 2 * epochs);
    if (from.empty()) trainer.save_checkpoint(path);
    return trainer.fabric().scaler().get_scale();
  };
  const std::vector<std::string> precisions = {"32-true", "bf16-mixed", "bf16-true", "16-mixed"};
  for (const std::string& before : precisions) {
    scale_after(before, 1, "", 8);
    for (const std::string& after : precisions) {
      INFO("from " << before << " in " << after);
      const double scale = scale_after(after, 2, path, 16);
      if (after == "16-mixed") CHECK(scale == (before == "16-mixed" ? 8 : 16));
    }
  }
}

TEST_CASE("a validation that throws gives the weights back") {
  struct Broken : Regression {
    void validation_step(const Batch&, int64_t) override {
      CHECK(weights_of(trainer(), *this) != trained);
      WEFT_FAIL("it broke");
    }
    void on_train_epoch_end() override { trained = weights_of(trainer(), *this); }
    std::vector<double> trained;
  };
  Trainer trainer(quiet({.max_epochs = 1,
                         .num_sanity_val_steps = 0,
                         .callbacks = {std::make_shared<EmaWeightAveraging>(EmaOptions{0.7})}}));
  Broken model;
  data::TensorLoader train(line(8), {.batch_size = 4});
  CHECK_THROWS_WITH(trainer.fit(model, train, train), "it broke");
  REQUIRE_FALSE(model.trained.empty());
  CHECK(weights_of(trainer, model) == model.trained);
}

TEST_CASE("two ModelCheckpoints share a directory, and leave each other's files alone") {
  const std::string directory = scratch("shared");
  const auto options = [&](Mode mode) {
    return ModelCheckpointOptions{.dirpath = directory,
                                  .filename = "{epoch}",
                                  .monitor = "score",
                                  .mode = mode,
                                  .save_last = true};
  };
  const auto fit = [&](const std::vector<double>& script, const std::string& from) {
    const auto low = std::make_shared<ModelCheckpoint>(options(Mode::kMin));
    const auto high = std::make_shared<ModelCheckpoint>(options(Mode::kMax));
    Trainer trainer(
        quiet({.max_epochs = script.size(), .num_sanity_val_steps = 0, .callbacks = {low, high}}));
    Scripted model(script);
    data::TensorLoader train(line(8), {.batch_size = 4});
    trainer.fit(model, train, train, from);
    return std::pair(io::Path(low->best_model_path()).filename().string(),
                     io::Path(high->best_model_path()).filename().string());
  };
  using Names = std::pair<std::string, std::string>;
  const Names both = {"epoch=1.safetensors", "epoch=1-v1.safetensors"};
  CHECK(fit({3, 3}, "") == both);
  const std::set<std::string> all = {"epoch=1.safetensors", "epoch=1-v1.safetensors",
                                     "last.safetensors", "last-v1.safetensors"};
  CHECK(files_in(directory) == all);
  // One that goes on replaces its own, each of the two what it had.
  const std::string from = scratch("shared_from.safetensors");
  std::filesystem::copy_file(directory + "/last-v1.safetensors", from);
  CHECK(fit({3, 3, 5, 1}, from) == Names("epoch=4.safetensors", "epoch=3.safetensors"));
  CHECK(fit({3, 3, 5, 1}, from) == Names("epoch=4.safetensors", "epoch=3.safetensors"));
  CHECK(files_in(directory) == std::set<std::string>{"epoch=4.safetensors", "epoch=3.safetensors",
                                                     "last.safetensors", "last-v1.safetensors"});
  // Another fit overwrites none of them, but for the last.
  CHECK(fit({1, 1, 3, 0}, "") == Names("epoch=4-v1.safetensors", "epoch=3-v1.safetensors"));
  CHECK(files_in(directory).size() == 6);
}

TEST_CASE("a fit that goes on from one ModelCheckpoint's state knows what the other has saved") {
  const std::string directory = scratch("knowing");
  const auto fit = [&](const std::vector<double>& script, const std::string& from) {
    const auto last = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = directory, .save_top_k = 0, .save_last = true});
    const auto latest = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = directory, .filename = "latest-{epoch}"});
    const auto best =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = directory,
                                                                 .filename = "best-{epoch}",
                                                                 .monitor = "score",
                                                                 .mode = Mode::kMax,
                                                                 .save_last = true});
    Trainer trainer(quiet({.max_epochs = script.size(),
                           .num_sanity_val_steps = 0,
                           .callbacks = {last, latest, best}}));
    Scripted model(script);
    data::TensorLoader train(line(8), {.batch_size = 4});
    trainer.fit(model, train, train, from);
    CHECK(best->best_model_score() == 5);
    CHECK(best->best_model_path() == directory + "/best-epoch=1.safetensors");
    CHECK(best->last_model_path() == directory + "/last-v1.safetensors");
  };
  for (const std::string from : {"last", "latest-epoch=1", "best-epoch=1", "last-v1"}) {
    INFO(from);
    std::filesystem::remove_all(directory);
    fit({5}, "");
    fit({5, 1, 2}, directory + "/" + from + ".safetensors");
    CHECK(files_in(directory) == std::set<std::string>{"best-epoch=1.safetensors",
                                                       "last-v1.safetensors", "last.safetensors",
                                                       "latest-epoch=3.safetensors"});
  }
}

TEST_CASE("a fit that ends between two saves leaves all that its last state names") {
  struct Ends : Callback {
    void on_save_start(Trainer&, TrainingModule&) override {
      if (++saves == ends_at) throw std::runtime_error("killed");
    }
    int saves = 0, ends_at = 0;
  };
  const std::string directory = scratch("between");
  const auto fit = [&](int ends_at, const std::string& from) {
    std::vector<std::shared_ptr<ModelCheckpoint>> saved;
    for (const char* name : {"first-{epoch}", "second-{epoch}"}) {
      saved.push_back(std::make_shared<ModelCheckpoint>(
          ModelCheckpointOptions{.dirpath = directory, .filename = name, .save_last = true}));
    }
    const auto ends = std::make_shared<Ends>();
    ends->ends_at = ends_at;
    Trainer trainer(quiet({.max_epochs = 2, .callbacks = {saved[0], saved[1], ends}}));
    Regression model;
    data::TensorLoader train(line(8), {.batch_size = 4});
    trainer.fit(model, train, std::nullopt, from);
  };
  // The first epoch's saves are the ranked states and "last" of each, the second's begin as they
  // do.
  for (int ends_at = 5; ends_at <= 8; ++ends_at) {
    INFO(ends_at);
    std::filesystem::remove_all(directory);
    CHECK_THROWS_WITH(fit(ends_at, ""), "killed");
    CHECK(files_in(directory).contains("first-epoch=1.safetensors"));
    CHECK(files_in(directory).contains("second-epoch=1.safetensors"));
    fit(0, directory + "/last.safetensors");
  }
}

TEST_CASE("ModelCheckpoints that differ in an option are saved under keys of their own") {
  std::set<std::string> keys;
  for (const ModelCheckpointOptions& options :
       std::vector<ModelCheckpointOptions>{{.monitor = "x"},
                                           {.monitor = "x", .mode = Mode::kMax},
                                           {.monitor = "x", .save_top_k = 2},
                                           {.dirpath = "a", .monitor = "x"},
                                           {.dirpath = "b", .monitor = "x"}}) {
    keys.insert(ModelCheckpoint(options).state_key());
  }
  CHECK(keys.size() == 5);
  // As it was before, where there is nothing to tell.
  CHECK(keys.contains("ModelCheckpoint({epoch}-{step}, x, 0, 0)"));
}

TEST_CASE("a metric is waited for until it could have been logged") {
  data::TensorLoader train(line(20), {.batch_size = 4});  // 5 batches an epoch
  const std::string directory = scratch("waiting");
  const auto ranked =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = directory,
                                                               .filename = "{step}-{val_loss:.1f}",
                                                               .monitor = "val_loss",
                                                               .save_top_k = -1,
                                                               .save_last = true,
                                                               .every_n_train_steps = 2});
  const auto stopping =
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_loss", .patience = 1});
  struct FirstSave : Callback {
    explicit FirstSave(std::string directory) : directory(std::move(directory)) {}
    void on_save_point(Trainer& trainer, TrainingModule&) override {
      if (trainer.global_step() != 2) return;
      CHECK(files_in(directory) == std::set<std::string>{"last.safetensors"});
      is_seen = true;
    }
    const std::string directory;
    bool is_seen = false;
  };
  const auto first = std::make_shared<FirstSave>(directory);
  {
    Trainer trainer(quiet({.max_epochs = 3,
                           .val_check_interval = 3,
                           .num_sanity_val_steps = 0,
                           .callbacks = {ranked, stopping, first}}));
    Regression model;
    trainer.fit(model, train, train);
    // Each epoch's mean is looked at once, though each epoch has a validation in its middle.
    CHECK(trainer.epoch() == 3);
  }
  CHECK(first->is_seen);
  CHECK(ranked->kept().size() == 6);  // steps 4, 6, ..., 14
  CHECK(stopping->stopped_epoch() == -1);
  CHECK(stopping->best_score() > 0);
  // What neither the epoch nor its validation has logged is logged by none.
  for (const auto& callback : std::vector<std::shared_ptr<Callback>>{
           std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_los"}),
           std::make_shared<ModelCheckpoint>(
               ModelCheckpointOptions{.dirpath = scratch("waiting_for_none"),
             .monitor = "val_los",
             .every_n_train_steps = 1})}) {
    Trainer trainer(quiet({.max_epochs = 2, .val_check_interval = 3, .callbacks = {callback}}));
    Regression model;
    CHECK_THROWS_WITH(
        trainer.fit(model, train, train),
        Contains("nothing was logged as \"val_los\"") && Contains("did you mean \"val_loss\"?"));
    CHECK(trainer.global_step() == 5);
  }
}

TEST_CASE("ranks go on with the same bits, too, each with its random stream") {
  for (const std::string strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    const std::string directory = scratch("ranks_" + strategy), end = scratch("ranks_end"),
                      again = scratch("ranks_again");
    const FabricOptions fabric = {.devices = 2, .strategy = {.name = strategy}};
    dist::run_ranks(2,
                    [&](dist::Communicator& c) { fit_noisy(fabric, borrowed(c), directory, end); });
    const std::string from = scratch("ranks_from");
    std::filesystem::copy_file(directory + "/step=8.safetensors", from);
    dist::run_ranks(
        2, [&](dist::Communicator& c) { fit_noisy(fabric, borrowed(c), directory, again, from); });
    CHECK(all_of(again) == all_of(end));
    // In the middle of an epoch batches are those of two ranks.
    CHECK_THROWS_WITH(fit_noisy({}, nullptr, directory, again, from),
                      Contains("saved after batch 3 of 5 of an epoch, on 2 ranks"));
  }
}

TEST_CASE("the best states of a fit are kept, and the last") {
  const std::string directory = scratch("best");
  const auto best = follow(
      {5, 3, 4, 1, NAN, 2},
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = directory,
                                                               .filename = "{epoch}-{score:.1f}",
                                                               .monitor = "score",
                                                               .save_top_k = 2,
                                                               .save_last = true}));
  CHECK(files_in(directory) == std::set<std::string>{"epoch=4-score=1.0.safetensors",
                                                     "epoch=6-score=2.0.safetensors",
                                                     "last.safetensors"});
  CHECK_THAT(best->best_model_path(), Contains("epoch=4-score=1.0"));
  CHECK(best->best_model_score() == 1);
  CHECK(best->kept().size() == 2);

  const std::string other = scratch("most");
  const auto most =
      follow({0.5, 0.9, 0.9, 0.7},
             std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = other,
                                                                      .filename = "best",
                                                                      .monitor = "score",
                                                                      .mode = Mode::kMax,
                                                                      .save_top_k = 1}));
  CHECK(most->best_model_score() == 0.9);
  CHECK(files_in(other).size() == 1);
  // The second of equals is no better.
  const auto state = all_of(most->best_model_path()).second;
  CHECK(state.at("trainer").at("value").at("epoch") == 2);

  // Every two steps, and the latest alone.
  const std::string steps = scratch("steps");
  follow({1, 1, 1}, std::make_shared<ModelCheckpoint>(
                        ModelCheckpointOptions{.dirpath = steps, .every_n_train_steps = 4}));
  CHECK(files_in(steps) == std::set<std::string>{"epoch=2-step=4.safetensors"});
  const std::string times = scratch("times");
  follow({1, 1, 1}, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                        .dirpath = times, .save_top_k = -1, .train_time_interval = 1ns}));
  CHECK(files_in(times).size() == 6);
  const std::string rare = scratch("rare");
  follow({1, 1, 1}, std::make_shared<ModelCheckpoint>(
                        ModelCheckpointOptions{.dirpath = rare, .train_time_interval = 1h}));
  CHECK(files_in(rare).empty());
}

TEST_CASE("a fit stops early, at the epoch that says so") {
  const auto options = [](EarlyStoppingOptions more) {
    more.monitor = "score";
    return std::make_shared<EarlyStopping>(more);
  };
  const auto patient = follow({5, 4, 3, 3.5, 3, 3.1, 2}, options({.patience = 3}));
  CHECK(patient->stopped_epoch() == 5);
  CHECK(patient->best_score() == 3);
  CHECK(patient->wait_count() == 3);
  CHECK(follow({5, 4, 3, 2, 1}, options({.patience = 2}))->stopped_epoch() == -1);
  // Improvements of a tenth are none.
  CHECK(follow({5, 4.9, 4.85, 1}, options({.patience = 2, .min_delta = 0.2}))->stopped_epoch() ==
        2);
  CHECK(follow({1, 2, 3, 3, 3}, options({.mode = Mode::kMax, .patience = 2}))->stopped_epoch() ==
        4);
  CHECK(follow({3, 2, 1, 0}, options({.stopping_threshold = 1.5}))->stopped_epoch() == 2);
  CHECK(follow({3, NAN, 1}, options({}))->stopped_epoch() == 1);
  CHECK(follow({3, NAN, 1}, options({.check_finite = false}))->stopped_epoch() == -1);
}

TEST_CASE(
    "a fit that goes on from one that has stopped early ends at once, unless it is more patient") {
  const std::string path = scratch("stopped_early");
  const auto fit = [&](int64_t patience, const std::string& from) {
    const auto stopping = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "score", .patience = patience});
    Trainer trainer(quiet({.max_epochs = 9, .num_sanity_val_steps = 0, .callbacks = {stopping}}));
    Scripted model({3, 4, 4, 4, 4, 4, 4, 4, 4});
    data::TensorLoader train(line(8), {.batch_size = 4});
    trainer.fit(model, train, train, from);
    CHECK(trainer.stop_reason() ==
          fmt::format("score has not got better than 3 in {} looks", patience));
    trainer.save_checkpoint(path);
    return trainer.epoch();
  };
  CHECK(fit(2, "") == 3);
  CHECK(fit(2, path) == 3);
  CHECK(fit(5, path) == 6);
}

TEST_CASE("averages of the weights are those of a plain computation") {
  struct Watch : Callback {
    void on_train_batch_end(Trainer& trainer, TrainingModule& module, const Tensor&, const Batch&,
                            int64_t) override {
      const std::vector<double> weights = weights_of(trainer, module);
      if (expected.empty()) {
        expected = weights;
      } else {
        for (size_t i = 0; i < weights.size(); ++i) {
          expected[i] = expected[i] * 0.75 + weights[i] * 0.25;
        }
      }
      latest = weights;
    }
    void on_validation_end(Trainer& trainer, TrainingModule& module) override {
      CHECK(weights_of(trainer, module) == latest);
    }
    std::vector<double> expected, latest;
  };
  struct Measured : Regression {
    void validation_step(const Batch&, int64_t) override {
      log("first", ops::narrow(ops::flatten(linear.weight), 0, 0, 1));
    }
  };
  const auto fit = [&](const FabricOptions& options, const dist::CommunicatorPtr& world,
                       bool is_watched) {
    FabricOptions fabric = options;
    fabric.precision = "64-true";
    fabric.split_batches = true;
    const auto average = std::make_shared<EmaWeightAveraging>(EmaOptions{.decay = 0.75});
    const auto watch = std::make_shared<Watch>();
    std::vector<std::shared_ptr<Callback>> callbacks = {average};
    if (is_watched) callbacks.push_back(watch);
    Trainer trainer(quiet({.fabric = fabric, .max_epochs = 2, .callbacks = callbacks}));
    trainer.launch(world);
    trainer.seed_everything(1);
    Measured measured;
    Regression plain;
    TrainingModule& model = is_watched ? static_cast<TrainingModule&>(measured) : plain;
    data::TensorLoader train(line(16, 0, DType::f64), {.batch_size = 4});
    trainer.fit(model, train, train);
    if (is_watched) {
      CHECK(weights_of(trainer, model) == watch->expected);
      CHECK(trainer.metric("first") == watch->expected[0]);
    }
    return weights_of(trainer, model);
  };
  fit({}, nullptr, true);
  const std::vector<double> one = fit({}, nullptr, false);
  for (const std::string strategy : {"ddp", "fsdp", "zero1"}) {
    std::vector<double> two;
    dist::run_ranks(2, [&](dist::Communicator& c) {
      const auto mine = fit({.devices = 2, .strategy = {.name = strategy}}, borrowed(c), false);
      if (c.rank() == 0) two = mine;
    });
    INFO(strategy);
    REQUIRE(two.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) CHECK(std::abs(two[i] - one[i]) < 1e-13);
  }
}

TEST_CASE("a step that throws leaves the last state whole") {
  struct Witness : Callback {
    void on_exception(Trainer& trainer, TrainingModule&, const std::exception& error) override {
      what = error.what();
      CHECK_THROWS_WITH(trainer.save_checkpoint("never"), Contains("a step is under way"));
    }
    std::string what;
  };
  const std::string directory = scratch("thrown");
  const auto checkpoint = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = directory, .every_n_train_steps = 3});
  const auto witness = std::make_shared<Witness>();
  data::TensorLoader train(line(18), {.batch_size = 4});
  {
    Trainer trainer(quiet({.max_epochs = 3, .callbacks = {checkpoint, witness}}));
    Noisy model;
    model.throws_at = 7;
    CHECK_THROWS_WITH(trainer.fit(model, train), "it broke");
    CHECK(trainer.global_step() == 7);
  }
  CHECK(witness->what == "it broke");
  CHECK(files_in(directory) == std::set<std::string>{"epoch=1-step=6.safetensors"});
  Trainer trainer(quiet({.max_epochs = 3}));
  Noisy model;
  trainer.fit(model, train, {}, checkpoint->best_model_path());
  CHECK(trainer.global_step() == 15);
}

TEST_CASE("a signal ends a fit after the step at hand, which is saved") {
  struct Interrupt : Callback {
    void on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor&, const Batch&,
                            int64_t) override {
      if (trainer.global_step() == 2) std::raise(SIGINT);
    }
  };
  const std::string directory = scratch("interrupted");
  const auto checkpoint =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = directory});
  TrainerOptions options =
      quiet({.max_epochs = 3, .callbacks = {checkpoint, std::make_shared<Interrupt>()}});
  options.handle_signals = true;
  Trainer trainer(options);
  Noisy model;
  data::TensorLoader train(line(18), {.batch_size = 4});
  trainer.fit(model, train);
  CHECK(trainer.was_interrupted());
  CHECK(trainer.global_step() == 2);
  CHECK(files_in(directory) == std::set<std::string>{"last.safetensors"});
  CHECK(all_of(checkpoint->last_model_path()).second.at("trainer").at("value").at("batch") == 2);
}

TEST_CASE("layers that are watched are logged with the figures of their steps") {
  struct Lines : Logger {
    void log_metrics(int64_t step, const NamedValues& values) override {
      for (const auto& [name, value] : values) {
        if (name.starts_with("watch/")) seen[name].emplace_back(step, value);
      }
    }
    std::map<std::string, std::vector<std::pair<int64_t, double>>> seen;
  };
  const auto fit = [](const std::string& precision) {
    const auto lines = std::make_shared<Lines>();
    Trainer trainer(quiet({.fabric = {.precision = precision,
                                      // Nothing overflows, which would leave steps out.
                                      .numerics = {.loss_scale = {.init_scale = 8}}},
                           .max_steps = 6,
                           .loggers = {lines},
                           .callbacks = {std::make_shared<WatchLayers>(2)}}));
    trainer.seed_everything(1);
    Regression model;
    data::TensorLoader train(line(24), {.batch_size = 4});
    trainer.fit(model, train);
    return lines->seen;
  };
  const auto wide = fit("32-true"), scaled = fit("16-mixed");
  REQUIRE(wide.size() == 4);
  const auto& norms = wide.at("watch/grad_norm/linear");
  REQUIRE(norms.size() == 3);
  CHECK(norms[2].first == 6);
  CHECK(norms[0].second > norms[2].second);
  // Without the scale of the loss; fp16 has 11 bits.
  CHECK(scaled.at("watch/grad_norm/linear")[0].second == Approx(norms[0].second).epsilon(0.01));
  CHECK_THROWS_WITH(WatchLayers(0), Contains("expected a positive number of steps, got 0"));
}

TEST_CASE("a signal cuts a validation short, which a fit that goes on repeats") {
  struct Interrupted : Noisy {
    explicit Interrupted(int64_t at) : at(at) {}
    void validation_step(const Batch& batch, int64_t index) override {
      if (++steps == at) std::raise(SIGTERM);
      Noisy::validation_step(batch, index);
      log("noise", ops::mean(ops::randn({4})));
    }
    const int64_t at;
    int64_t steps = 0;
  };
  data::TensorLoader train(line(18), {.batch_size = 4}), validation(line(12, 1), {.batch_size = 4});
  const std::string directory = scratch("cut_short");
  // Validations of 3 steps, after batches 2 and 4, or after the fifth, an epoch's last.
  const int64_t interval = GENERATE(2, 5);
  const auto fit = [&](int64_t at, const std::string& from) {
    const auto checkpoint =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = directory});
    TrainerOptions options =
        quiet({.max_epochs = 2, .val_check_interval = interval, .callbacks = {checkpoint}});
    options.num_sanity_val_steps = 0;
    options.handle_signals = true;
    Trainer trainer(options);
    trainer.seed_everything(1);
    Interrupted model(at);
    trainer.fit(model, train, validation, from);
    CHECK(trainer.was_interrupted() == (at > 0));
    if (at > 0) CHECK(!trainer.has_validated());
    std::vector<double> ended_with = weights_of(trainer, model);
    if (at == 0) ended_with.push_back(trainer.metric("noise"));
    return std::pair(ended_with, model.steps);
  };
  const auto whole = fit(0, "");
  for (const int64_t at : {1, 5}) {
    INFO(at);
    CHECK(fit(at, "").second == at);
    const auto rest = fit(0, directory + "/last.safetensors");
    CHECK(rest.first == whole.first);
    CHECK(rest.second == whole.second - (at - 1) / 3 * 3);
  }
}

TEST_CASE("a fit without validations ends the epoch whose validation a signal has cut short") {
  struct Interrupted : Regression {
    void validation_step(const Batch& batch, int64_t index) override {
      std::raise(SIGTERM);
      Regression::validation_step(batch, index);
    }
  };
  data::TensorLoader train(line(8), {.batch_size = 4});
  const std::string directory = scratch("cut_at_the_end");
  TrainerOptions options = quiet({.max_epochs = 2,
                                  .num_sanity_val_steps = 0,
                                  .callbacks = {std::make_shared<ModelCheckpoint>(
                                      ModelCheckpointOptions{.dirpath = directory})}});
  options.handle_signals = true;
  Trainer first(options);
  Interrupted model;
  first.fit(model, train, train);
  CHECK(first.was_interrupted());
  CHECK(std::pair(first.epoch(), first.batch()) == std::pair<int64_t, int64_t>(0, 2));
  Trainer second(quiet({.max_epochs = 2}));
  Regression rest;
  second.fit(rest, train, std::nullopt, directory + "/last.safetensors");
  CHECK(second.epoch() == 2);
  CHECK(second.global_step() == 4);
}

TEST_CASE("what cannot go on, and what was never logged, is said by name") {
  const std::string path = scratch("noisy_state");
  data::TensorLoader train(line(18), {.batch_size = 4});
  {
    Trainer trainer(quiet({.max_epochs = 1}));
    Noisy model;
    CHECK_THROWS_WITH(trainer.save_checkpoint(path), Contains("after fit()"));
    trainer.fit(model, train);
    trainer.save_checkpoint(path);
  }
  const auto message = [&](TrainingModule&& model, const std::string& from,
                           std::vector<std::shared_ptr<Callback>> callbacks = {}) {
    try {
      Trainer(quiet({.max_epochs = 2, .callbacks = callbacks})).fit(model, train, {}, from);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(message(Noisy(9), path),
             Contains(path) && Contains("net.0.weight (expected [9, 3], got [8, 3])"));
  CHECK_THAT(message(Regression(), path), Contains("with a schedule"));
  CHECK_THAT(message(Noisy(), path + ".none"), Contains(path + ".none"));
  io::write_safetensors(path + ".plain", {{"x", Tensor::zeros({1})}}, {{"format", "pt"}});
  CHECK_THAT(message(Noisy(), path + ".plain"), Contains("holds no named states"));
  for (const auto& callback : std::vector<std::shared_ptr<Callback>>{
           std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_los"}),
           std::make_shared<ModelCheckpoint>(
               ModelCheckpointOptions{.dirpath = scratch("unknown"), .monitor = "train_los"})}) {
    CHECK_THAT(message(Noisy(), {}, {callback}),
               Contains("nothing was logged as \"train_los\"; there are: train_loss, index") &&
                   Contains("did you mean \"train_loss\"?"));
  }
  CHECK_THROWS_WITH(EarlyStopping({}), Contains("monitor"));
  CHECK_THROWS_WITH(EarlyStopping({.monitor = "x", .patience = 0}), Contains("patience"));
  CHECK_THROWS_WITH(EarlyStopping({.monitor = "x", .min_delta = -1}), Contains("min_delta"));
  CHECK_THROWS_WITH(EmaWeightAveraging({.decay = 1}), Contains("decay"));
  CHECK_THROWS_WITH(ModelCheckpoint({.save_top_k = 2}), Contains("without a monitor"));
  CHECK_THROWS_WITH(ModelCheckpoint({.save_top_k = -2}), Contains("save_top_k"));
  CHECK_THROWS_WITH(ModelCheckpoint({.train_time_interval = 0s}), Contains("train_time_interval"));
  CHECK_THROWS_WITH(ModelCheckpoint({.filename = "a/b"}), Contains("filename"));
  const auto twice = std::make_shared<EmaWeightAveraging>();
  CHECK_THROWS_WITH(Trainer({.max_epochs = 1, .callbacks = {twice, twice}}),
                    Contains("two callbacks would be saved as \"EmaWeightAveraging\""));
}

TEST_CASE("a checkpoint with a key left out, or a value of another type") {
  const std::string path = scratch("damaged.safetensors");
  const auto early = [] {
    return std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss"});
  };
  data::TensorLoader data(line(8), {.batch_size = 2});
  const TrainerOptions options = quiet({.max_epochs = 1, .callbacks = {early()}});
  {
    Trainer trainer(options);
    Noisy model;
    trainer.fit(model, data, data);
    trainer.save_checkpoint(path);
  }
  const io::SafeTensors saved = io::read_safetensors(path);
  nlohmann::json whole = nlohmann::json::parse(saved.metadata.at("weft.state"));
  int errors = 0;
  for (const char* state : {"trainer", "callback:EarlyStopping(val_loss)", "schedule"}) {
    const nlohmann::json value = whole.at(state).at("value");
    for_each_damage(value, [&](const nlohmann::json& damaged, const std::string& key) {
      io::Metadata metadata = saved.metadata;
      nlohmann::json all = whole;
      all[state]["value"] = damaged;
      metadata["weft.state"] = all.dump();
      io::write_safetensors(path, saved.tensors, metadata);
      INFO(state << " " << damaged.dump());
      TrainerOptions again = options;
      again.callbacks = {early()};
      Trainer trainer(again);
      Noisy model;
      try {
        trainer.fit(model, data, data, path);
      } catch (const Error& error) {
        ++errors;
        // A schedule's list that is too short is told with the groups it is of.
        CHECK_THAT(error.what(), Contains(path) && (Contains(key) || Contains("parameter groups")));
      }
    });
  }
  CHECK(errors > 100);
  // Of an epoch of 4 batches.
  for (const auto& [key, value] :
       {std::pair("epoch", -1), {"batch", -1}, {"batch", 5}, {"global_step", -1}}) {
    io::Metadata metadata = saved.metadata;
    nlohmann::json all = whole;
    all["trainer"]["value"][key] = value;
    metadata["weft.state"] = all.dump();
    io::write_safetensors(path, saved.tensors, metadata);
    Trainer trainer(quiet({.max_epochs = 3, .callbacks = {early()}}));
    Noisy model;
    CHECK_THROWS_WITH(trainer.fit(model, data, data, path),
                      Contains(path) && Contains(key) && Contains(std::to_string(value)));
  }
}
