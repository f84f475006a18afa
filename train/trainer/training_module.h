// A model that says how it is trained: what train::Trainer fits.
//
//   struct Regression : train::TrainingModule {
//     Regression() : line(add<nn::Linear>("line", 3, 1)) {}
//     Tensor forward(const Tensor& x) override { return line(x); }
//     Tensor training_step(const train::Batch& batch, int64_t) override {
//       const Tensor loss = nn::mse_loss((*this)(batch[0]), batch[1]);
//       log("train_loss", loss);
//       return loss;
//     }
//     void validation_step(const train::Batch& batch, int64_t) override {
//       log("val_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
//     }
//     train::Optimization configure_optimizers() override {
//       return std::make_unique<optim::AdamW>(named_parameters(), optim::AdamWOptions{.lr = 0.1});
//     }
//     nn::Linear& line;
//   };
//
// A step runs in the precision asked for and knows of the shards; it may call the module, as
// (*this)(x), its parts and functions of its own. Under dp and pipeline, which share out model(x)
// alone, a part refuses; so it does in a step that takes the optimizers' steps itself, but within
// trainer().fabric().forward(model, [&] { ... }).
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/metrics/metrics_log.h"

namespace weft::train {

class Trainer;

/// A loader's batch on this rank's device: the tensors of its samples, counted by the first
/// dimension. Of a data::Loader: images, labels and, with mixup or cutmix, soft labels.
using Batch = Tensors;

struct LogOptions {
  bool on_epoch = true;  // the mean over the epoch, or over a validation
  /// Of a training step: also "NAME_step", the mean over the ranks, every log_every_n_steps.
  bool on_step = false;
};

/// An optimizer and the schedule of its learning rate, if any, counted in steps of it
/// (optim::per_epoch, Trainer::estimated_steps); or several such.
struct Optimization {
  struct Part {
    std::shared_ptr<optim::Optimizer> optimizer;
    optim::Schedule schedule;
  };

  template <std::derived_from<optim::Optimizer> T>
  Optimization(std::unique_ptr<T> optimizer, optim::Schedule schedule = {})
      : parts{{std::move(optimizer), std::move(schedule)}} {}
  Optimization(std::shared_ptr<optim::Optimizer> optimizer, optim::Schedule schedule = {})
      : parts{{std::move(optimizer), std::move(schedule)}} {}
  /// Several, of a module whose automatic_optimization is false.
  Optimization(std::initializer_list<Optimization> several) {
    for (const Optimization& one : several) {
      parts.insert(parts.end(), one.parts.begin(), one.parts.end());
    }
  }

  std::vector<Part> parts;
};

/// Models by name.
using NamedModels = std::vector<std::pair<std::string, nn::Module*>>;

class TrainingModule : public nn::Module {
 public:
  /// What is set up, trained and saved: this module, or for steps around a model of another class
  /// that model, under its own names. The steps then call it, as model()(x).
  virtual nn::Module& model() { return *this; }
  /// Several of them, where training_step() takes its steps itself: each is set up, cut and saved
  /// for itself, under names of its own.
  virtual NamedModels models() { return {{"module", &model()}}; }
  /// The loss of a batch, one number: the mean over its samples. `index`: of the batch in its
  /// epoch. By default loss() of model()(input(batch)).
  virtual Tensor training_step(const Batch& batch, int64_t index);
  // The same in two parts, which a pipeline needs: there a batch comes in micro-batches, and the
  // last stage alone has the output. One of loss() and training_step() is to be defined.
  virtual Tensor input(const Batch& batch) { return batch.at(0); }
  virtual Tensor loss(const Tensor& output, const Batch& batch);
  /// The part of a micro-batch's loss in that of its step, which has so many on each rank. By
  /// default one of accumulate_grad_batches and of the ranks.
  virtual double share(const Batch& batch, int64_t batches) const;
  /// Measures a batch, in evaluation and without a tape; log() says what. Throws Error when a
  /// subclass that is validated defines none.
  virtual void validation_step(const Batch& batch, int64_t index);
  /// The same, for Trainer::test().
  virtual void test_step(const Batch& batch, int64_t index);
  /// What Trainer::predict() keeps of a batch: by default model()(input(batch)).
  virtual Tensor predict_step(const Batch& batch, int64_t index);
  /// Called once, before the module is set up.
  virtual Optimization configure_optimizers() = 0;
  /// False: training_step() takes the steps of one or several optimizers itself, by
  /// manual_backward() and optimizer(i).step(). It may return nothing.
  bool automatic_optimization = true;

  // The places to log() what batches do not add up to; on_train_epoch_end before the validation
  // that ends the epoch.
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}

  /// Throws Error outside of a Trainer.
  Trainer& trainer() const;
  /// Of those that configure_optimizers() gave, in a fit. Throws Error where there is none.
  optim::Optimizer& optimizer(size_t index = 0) const;
  /// That of the optimizer of the same number.
  optim::Scheduler& lr_scheduler(size_t index = 0) const;

 protected:
  /// For the steps above: a number, averaged over batches, each with its samples' weight, and over
  /// the ranks. Every rank logs the same names. Throws Error for a tensor of several elements, and
  /// outside of a Trainer's step.
  void log(const std::string& name, const Tensor& value, const LogOptions& options = {});
  void log(const std::string& name, double value, const LogOptions& options = {}) {
    log(name, Tensor::scalar(value, DType::f64), options);
  }
  void log_dict(const std::vector<std::pair<std::string, Tensor>>& values,
                const LogOptions& options = {}) {
    for (const auto& [name, value] : values) log(name, value, options);
  }
  /// Fabric::backward(), which knows of the loss scale and the ranks: of a training_step() that
  /// takes its steps itself. Throws Error in others.
  void manual_backward(const Tensor& loss) const;

 private:
  friend class Trainer;
  Trainer* trainer_ = nullptr;
};

}  // namespace weft::train
