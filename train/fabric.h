// A plain training loop on any number of ranks.
//
//   train::Fabric fabric({.devices = 4, .precision = "bf16-mixed", .strategy = {.name = "fsdp"}});
//   if (const auto code = fabric.launch(argc, argv)) return *code;  // starts the ranks, or is one
//   fabric.seed_everything(1);
//   Net model;
//   optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
//   fabric.setup(model, optimizer);
//   auto loader = fabric.setup_dataloader(dataset, {.batch_size = 64, .shuffle = true});
//   while (auto batch = loader->next()) {
//     optimizer.zero_grad();
//     fabric.backward(ops::cross_entropy(fabric.forward(images), labels));
//     fabric.clip_gradients(optimizer, 1.0);
//     fabric.step(optimizer);
//   }
//   fabric.save("model.safetensors");
//
// A step of several micro-batches, or one in a strategy's own order, is fabric.run() in the place
// of backward(). `weft train` is built on this (train/ranks.h, train/optimization.h);
// examples/plain_training.cc and examples/scaled_training.cc are one program without and with it.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "dist/plan/sharing.h"
#include "dist/strategy/strategy.h"
#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "train/precision.h"

namespace weft::train {

/// Settings that the name of a precision leaves open.
struct NumericsOptions {
  optim::GradScalerOptions loss_scale = {};  // of 16-mixed
  bool loss_scale_is_fixed = false;          // its first value stays
  Fp8Options fp8 = {};
  kernels::Accumulation accumulation = kernels::Accumulation::kIeee;
  kernels::Tf32 tf32_rounding = kernels::Tf32::kTruncate;
};

struct FabricOptions {
  std::string device = "cpu";  // cpu or cuda; of a single device also its number: cuda:1
  int devices = 1;             // with cuda a rank takes the device of its number on its host
  /// 32-true, 64-true, 16-mixed (the loss is scaled), bf16-mixed, 16-true, bf16-true,
  /// transformer-engine (fp8), or by our names (train/precision.h).
  std::string precision = "32-true";
  dist::StrategyOptions strategy = {};  // a parallel head: with cross_entropy() below
  NumericsOptions numerics = {};
};

class Fabric {
 public:
  /// Throws Error for options that do not go together.
  explicit Fabric(const FabricOptions& options);

  /// With several devices, outside mpirun and srun: starts this program again as so many ranks,
  /// waits, and returns their exit code, with which main() is to end. Otherwise joins the ranks
  /// that are there and returns nothing.
  [[nodiscard]] std::optional<int> launch(int argc, char** argv);
  /// Joins ranks that are there already, such as threads of a test; null for a process alone.
  void launch(dist::CommunicatorPtr world);

  /// Where this rank computes.
  Device device() const { return device_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  int size() const { return world_ ? world_->size() : 1; }
  bool is_main() const { return rank() == 0; }
  /// Ranks that take different samples, and this one's number among them.
  int data_size() const { return strategy_->data_size(); }
  int data_rank() const { return strategy_->data_rank(); }
  /// Devices that take different samples, threads of dp among them.
  int data_devices() const { return sharing_.data_devices(); }
  dist::Strategy& strategy() const { return *strategy_; }
  /// Null for a process alone.
  const dist::CommunicatorPtr& world() const { return world_; }

  /// Shards a model and its optimizer, which has not stepped yet, as the strategy says, and moves
  /// the model to the device. The strategy asks the model for its structure.
  void setup(nn::Module& model, optim::Optimizer& optimizer) {
    setup(model, optimizer, model.structure());
  }
  /// The same, for a model that does not describe itself.
  void setup(nn::Module& model, optim::Optimizer& optimizer, const nn::ModelStructure& structure);
  /// A loader of batches of options.batch_size for each device, different ones, moved there. Ranks
  /// that share a layer or a pipeline get the same; with dp one batch holds those of all devices.
  std::unique_ptr<data::Loader> setup_dataloader(data::DatasetPtr dataset,
                                                 data::LoaderOptions options) const;

  /// The model on x, wherever that is, in the precision asked for; logits come back in f32 or f64,
  /// on the device.
  Tensor forward(const Tensor& x);
  /// ops::cross_entropy of what forward() returned. With parallel_head a rank has the logits of
  /// some classes alone: then it has to be this one.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options = {}) const {
    return strategy_->cross_entropy(logits, labels, options);
  }
  /// Enters the precision, for as long as the result lives; the functions here do so themselves.
  PrecisionScope autocast();
  /// Computes the gradients of the mean of all ranks' losses; in 16-mixed they are scaled.
  void backward(const Tensor& loss);
  /// Forward and backward of a step's micro-batches, in the strategy's order. The loss of each is
  /// its share of the whole batch's loss, scaled().
  void run(const dist::MicroBatches& batches);
  Tensor scaled(const Tensor& loss) { return scaler_.scale(loss); }
  /// Scales the gradients so that their norm over all ranks is at most max_norm, and returns the
  /// norm that they had. In 16-mixed it divides them by the loss scale first.
  double clip_gradients(optim::Optimizer& optimizer, double max_norm);
  /// In 16-mixed divides the gradients by the loss scale, once a step, and returns the norm of this
  /// rank's; else 0. clip_gradients() and step() do it where it was not done.
  double unscale(optim::Optimizer& optimizer);
  /// optimizer.step(gradient_scale); then sets the loss scale and the scales of fp8 for the next
  /// step. Returns false, on all ranks, when a gradient was infinite on one of them and the step
  /// was skipped.
  bool step(optim::Optimizer& optimizer, double gradient_scale = 1);
  /// Instead of step(): nothing changes.
  void skip_step();
  optim::GradScaler& scaler() { return scaler_; }
  Fp8Scaling& fp8() { return fp8_; }

  /// In place; complete when it returns.
  void all_reduce(const Tensor& x, dist::ReduceOp op = dist::ReduceOp::kMean) const;
  /// [ranks, ...]: every rank's x, where x is.
  Tensor all_gather(const Tensor& x) const;
  void broadcast(const Tensor& x, int source = 0) const;
  void barrier() const;

  /// The whole model as a safetensors file, written by rank 0. Every rank calls both.
  void save(const std::string& path);
  void load(const std::string& path);

  /// On rank 0 alone.
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... arguments) const {
    if (is_main()) fmt::print(format, std::forward<Args>(arguments)...);
  }
  /// Weights of all ranks from one seed, dropout of each from its own stream: call it first.
  void seed_everything(uint64_t seed) const;

 private:
  void reduce_amax();

  const FabricOptions options_;
  const dist::Sharing sharing_;
  const Precision& precision_;
  optim::GradScaler scaler_;
  Fp8Scaling fp8_;
  bool is_unscaled_ = false;  // since the last step
  Device device_;
  dist::CommunicatorPtr world_;
  std::unique_ptr<dist::Strategy> strategy_;
  nn::Module* model_ = nullptr;
};

}  // namespace weft::train
