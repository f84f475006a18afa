// The loop on a CUDA device, the emulated one where there is no other.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/runtime.h"
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
