// test() and predict(), and validate() of a checkpoint's weights.
#include <catch2/catch.hpp>

#include "dist/comm/in_process.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/testing.h"
#include "train/trainer/trainer.h"

using namespace weft;
using namespace weft::train;
using namespace weft::train::testing;
using Catch::Matchers::Contains;

namespace {

struct Tested : Regression {
  void test_step(const Batch& batch, int64_t) override {
    CHECK(!is_training());
    log("test_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
  }
  void on_test_epoch_start() override { text += "start "; }
  void on_test_epoch_end() override {
    text += "end ";
    log("ended", 1);
  }
  std::string text;
};

}  // namespace

TEST_CASE("test() measures by test_step(), of a checkpoint's weights if asked to") {
  struct Heard : Callback {
    void on_test_start(Trainer&, TrainingModule&) override { text += "("; }
    void on_test_end(Trainer&, TrainingModule&) override { text += ")"; }
    void on_test_batch_end(Trainer&, TrainingModule&, const Batch& batch, int64_t index) override {
      text += fmt::format("{}:{} ", index, batch[0].size(0));
    }
    void on_validation_batch_end(Trainer&, TrainingModule&, const Batch&, int64_t) override {
      text += "v";
    }
    std::string text;
  };
  const auto heard = std::make_shared<Heard>();
  Trainer trainer(quiet({.max_epochs = 2, .callbacks = {heard}}));
  trainer.seed_everything(1);
  Tested module;
  data::TensorLoader train(line(16), {.batch_size = 4}), test(line(7, 1), {.batch_size = 3});
  trainer.fit(module, train);
  const std::string path = scratch("measured") + "/last.safetensors";
  trainer.save_checkpoint(path);
  const NamedValues values = trainer.test(module, test);
  REQUIRE(values.size() == 2);
  CHECK(values[0].first == "test_loss");
  CHECK(values[1] == std::pair<std::string, double>("ended", 1));
  CHECK(values[0].second == Approx(trainer.validate(module, test)[0].second));
  CHECK(module.text == "start end ");
  CHECK(heard->text == "(0:3 1:3 2:1 )vvv");
  CHECK(module.is_training());

  Trainer other(quiet({.max_epochs = 1, .limit_test_batches = 1, .limit_predict_batches = 2}));
  other.seed_everything(9);
  Tested fresh;
  CHECK(other.validate(fresh, test)[0].second != values[0].second);
  CHECK(other.test(fresh, test, path)[0].second != values[0].second);  // of one batch
  CHECK(other.validate(fresh, test)[0].second == Approx(values[0].second));
  CHECK(other.predict(fresh, test).size() == 2);
  CHECK_THROWS_WITH(other.test(fresh, test, path + "x"), Contains(path + "x"));

  Regression none;
  CHECK_THROWS_WITH(Trainer(quiet({.max_epochs = 1})).test(none, test), Contains("test_step()"));
  CHECK_THROWS_WITH(Trainer(quiet({.max_epochs = 1, .limit_test_batches = 0})),
                    Contains("limit_test_batches"));
  CHECK_THROWS_WITH(Trainer(quiet({.max_epochs = 1, .limit_predict_batches = 1.5})),
                    Contains("limit_predict_batches"));
}

TEST_CASE("predict() returns what the module says of each batch, every sample once") {
  struct Doubled : Regression {
    Tensor predict_step(const Batch& batch, int64_t) override {
      CHECK(!is_training());
      const Tensor y = (*this)(batch[0]);
      return trainer().fabric().gather_for_metrics(y * 2.0);
    }
  };
  const auto predict = []<class Module>(const FabricOptions& fabric,
                                        const dist::CommunicatorPtr& world) {
    Trainer trainer(quiet({.fabric = fabric, .max_epochs = 1}));
    trainer.launch(world);
    trainer.seed_everything(1);
    Module module;
    data::TensorLoader loader(line(9), {.batch_size = 2});
    std::vector<double> values;
    for (const Tensor& part : trainer.predict(module, loader)) {
      CHECK(!part.requires_grad());
      for (const double v : part.to_vector()) values.push_back(v);
    }
    return values;
  };
  const std::vector<double> plain = predict.operator()<Regression>({}, nullptr);
  std::vector<double> doubled = predict.operator()<Doubled>({}, nullptr);
  REQUIRE(plain.size() == 9);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(doubled[i] == 2 * plain[i]);
  dist::run_ranks(2, [&](dist::Communicator& c) {
    const dist::CommunicatorPtr world(&c, [](dist::Communicator*) {});
    const std::vector<double> mine =
        predict.operator()<Doubled>({.devices = 2, .strategy = {.name = "ddp"}}, world);
    WEFT_CHECK(mine == doubled, "rank {} predicts otherwise", c.rank());
  });
}

TEST_CASE("several ranks measure the running statistics that are saved") {
  struct Normalized : Regression {
    Normalized() : norm(add<nn::BatchNorm2d>("norm", 3)) {}
    Tensor normalized(const Tensor& x) {
      return ops::reshape(norm(ops::reshape(x, {-1, 3, 1, 1})), {-1, 3});
    }
    Tensor forward(const Tensor& x) override { return linear(normalized(x)); }
    nn::ModelStructure structure() override {
      nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
      structure.segments = {{"norm", [this](const Tensor& x) { return normalized(x); }, {"norm"}},
                            {"linear", [this](const Tensor& x) { return linear(x); }, {"linear"}}};
      return structure;
    }
    Tensor loss(const Tensor& output, const Batch& batch) override {
      return nn::mse_loss(output, batch[1]);
    }
    nn::BatchNorm2d& norm;
  };
  data::TensorLoader validation(line(32, 1), {.batch_size = 8});
  const std::string path = scratch("statistics") + "/last.safetensors";
  for (const std::string strategy : {"ddp", "fsdp", "zero1", "pipeline"}) {
    for (const bool validates : {true, false}) {
      INFO(strategy << (validates ? ", validated in the fit" : ""));
      const int stages = strategy == "pipeline" ? 2 : 1, ranks = 2 * stages;
      std::vector<double> losses(ranks);
      std::vector<Tensors> predicted(ranks);
      dist::run_ranks(ranks, [&](dist::Communicator& c) {
        FabricOptions fabric = {.devices = ranks, .strategy = {.name = strategy}};
        if (stages > 1) {
          fabric.strategy.pipeline_stages = stages;
          fabric.strategy.micro_batches = 2;
        }
        Trainer trainer(quiet({.fabric = fabric, .max_epochs = 1}));
        trainer.launch({&c, [](dist::Communicator*) {}});
        trainer.seed_everything(1);
        Normalized module;
        data::TensorLoader train(line(32), {.batch_size = 8}), own(line(32, 1), {.batch_size = 8});
        if (validates) {
          trainer.fit(module, train, own);
          losses[c.rank()] = trainer.metric("val_loss");
        } else {
          trainer.fit(module, train);
          predicted[c.rank()] = trainer.predict(module, own);
        }
        trainer.save_checkpoint(path);
      });
      Trainer other(quiet({.max_epochs = 1}));
      Normalized fresh;
      const double loss = other.validate(fresh, validation, path)[0].second;
      const Tensors whole = other.predict(fresh, validation, path);
      for (int rank = 0; rank < ranks; ++rank) {
        if (validates) CHECK(losses[rank] == Approx(loss).epsilon(1e-5));
        for (size_t i = 0; i < predicted[rank].size(); ++i) {
          const std::vector<double> mine = predicted[rank][i].to_vector(),
                                    expected = whole.at(2 * i + rank / stages).to_vector();
          REQUIRE(mine.size() == expected.size());
          for (size_t j = 0; j < mine.size(); ++j) {
            CHECK(mine[j] == Approx(expected[j]).epsilon(1e-4).margin(1e-5));
          }
        }
        CHECK(predicted[rank].size() == (validates ? 0 : 2));
      }
    }
  }
}
