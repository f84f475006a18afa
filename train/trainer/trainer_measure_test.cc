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
