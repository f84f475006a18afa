// A plain training loop on any number of ranks.
//
//   train::Fabric fabric({.devices = 4, .precision = "bf16-mixed", .strategy = "fsdp"});
//   fabric.launch(argc, argv);                        // starts the ranks, or is one
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
// A step of several parts, or one in a strategy's own order, is fabric.run(parts) in the place of
// backward(). `weft train` is built on this (train/ranks.h, train/optimization.h);
// examples/plain_training.cc and examples/scaled_training.cc are one program without and with it.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>

#include "data/loader.h"
#include "dist/strategy.h"
#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "train/precision.h"

namespace weft::train {

/// What a precision leaves open.
struct NumericsOptions {
  optim::GradScalerOptions loss_scale = {};  // of 16-mixed
  bool loss_scale_is_fixed = false;          // its first value stays
  Fp8Options fp8 = {};
  kernels::Accumulation accumulation = kernels::Accumulation::ieee;
  kernels::Tf32 tf32_rounding = kernels::Tf32::truncate;
};

struct FabricOptions {
  std::string device = "cpu";  // cpu or cuda; a single device also by number: cuda:1
  int devices = 1;             // cuda: each rank on the device of its number among its host's
  /// 32-true, 64-true, 16-mixed (the loss is scaled), bf16-mixed, 16-true, bf16-true,
  /// transformer-engine (fp8), or by our names (train/precision.h).
  std::string precision = "32-true";
  std::string strategy = "auto";  // dist/strategy.h; auto: ddp on several devices
  // Of one strategy each; 0: its own choice.
  int shard_size = 0;              // hsdp
  int tensor_parallel = 0;         // tp, fsdp+tp
  bool sequence_parallel = false;  // tp, fsdp+tp
  bool parallel_head = false;      // tp, fsdp+tp: with cross_entropy() below
  int pipeline_stages = 0;         // pipeline
  int micro_batches = 0;           // pipeline
  bool cpu_offload = false;        // fsdp, zero3, hsdp, fsdp+tp
  NumericsOptions numerics = {};
};

class Fabric {
 public:
  /// Throws Error for options that do not go together.
  explicit Fabric(const FabricOptions& options);
  /// With `strategy` in the place of what the options say of it.
  Fabric(const FabricOptions& options, const dist::StrategyOptions& strategy);

  /// With several devices, outside mpirun and srun: starts this program again as so many ranks,
  /// waits, and ends the program with their exit code. Else joins the ranks that are there.
  void launch(int argc, char** argv);
  /// Joins ranks that are there already, threads of a test among them; null: alone.
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
  int data_devices() const { return dist::data_devices_of(strategy_options_, options_.devices); }
  dist::Strategy& strategy() const { return *strategy_; }
  /// null: this process is alone.
  const dist::CommunicatorPtr& world() const { return world_; }

  /// Takes over a model and its optimizer, which has not stepped yet, and brings the model to the
  /// device. `structure` may be what fsdp
  /// gathers together (dist::wrap_modules); tp, pipeline and dp need more of it.
  void setup(nn::Module& model, optim::Optimizer& optimizer,
             const dist::ModelStructure& structure = {});
  /// Batches of options.batch_size on each device, different ones, brought there. Ranks that share
  /// a layer or a pipeline have the same; with dp one batch holds those of all devices.
  std::unique_ptr<data::Loader> setup_dataloader(data::DatasetPtr dataset,
                                                 data::LoaderOptions options) const;

  /// The model on x, wherever that is, in the precision asked for; logits come back in f32 or f64,
  /// on the device.
  Tensor forward(const Tensor& x);
  /// ops::cross_entropy of what forward() returned; with parallel_head, whose logits are a part of
  /// the classes, this one alone fits.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options = {}) const {
    return strategy_->cross_entropy(logits, labels, options);
  }
  /// Enters the precision, for as long as the result lives; the functions here do so themselves.
  PrecisionScope autocast();
  /// Gradients of the mean over ranks of their losses, in 16-mixed scaled.
  void backward(const Tensor& loss);
  /// Forward and backward of a step's parts, in the strategy's order. A part's loss is its share of
  /// the whole batch's, scaled().
  void run(const dist::MicroBatches& parts);
  Tensor scaled(const Tensor& loss) { return scaler_.scale(loss); }
  /// While the result lives, gradients stay on their rank and add up: for accumulation.
  std::shared_ptr<void> no_backward_sync() { return strategy_->no_sync(); }
  /// Scales the gradients so that their norm over all ranks is at most max_norm; returns what it
  /// was. In 16-mixed it takes the loss scale out of them first.
  double clip_gradients(optim::Optimizer& optimizer, double max_norm);
  /// In 16-mixed takes the loss scale out of the gradients, once a step, and returns the norm of
  /// this rank's; else 0. clip_gradients() and step() do it where it was not done.
  double unscale(optim::Optimizer& optimizer);
  /// optimizer.step(gradient_scale), which in 16-mixed knows nothing of the loss scale: false, on
  /// all ranks, where a gradient was infinite on one of them and the step was left out. Then the
  /// scales of the next step.
  bool step(optim::Optimizer& optimizer, double gradient_scale = 1);
  optim::GradScaler& scaler() { return scaler_; }
  Fp8Scaling& fp8() { return fp8_; }

  /// In place, and waited for.
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
  const dist::StrategyOptions strategy_options_;
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
