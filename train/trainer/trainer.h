// Trains a module by its own steps: the loop around Fabric, with Lightning's words.
//
//   train::Trainer trainer({.fabric = train::from_environment(), .max_epochs = 10,
//                           .directory = "runs/regression"});
//   if (const auto code = trainer.launch(argc, argv)) return *code;
//   trainer.seed_everything(1);
//   Regression model;                                             // a TrainingModule
//   data::TensorLoader train(data::tensor_dataset({x, y}), {.batch_size = 64, .shuffle = true});
//   data::TensorLoader validation(data::tensor_dataset({u, v}), {.batch_size = 64});
//   trainer.fit(model, train, validation);
//   trainer.fabric().save("model.safetensors");
//
// Device, precision, strategy and number of devices are Fabric's options; the loop stays the same.
// What ends a fit, and when a state is due, ranks decide together, by one small collective a step.
// A module with several optimizers takes its steps itself (TrainingModule::automatic_optimization).
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/fabric.h"
#include "train/limit.h"
#include "train/metrics/logger.h"
#include "train/trainer/batch_source.h"
#include "train/trainer/callback.h"
#include "train/trainer/captured_passes.h"
#include "train/trainer/logged_means.h"
#include "train/trainer/training_module.h"

namespace weft::train {

/// Whether a step's forward and backward passes are launched as one CUDA graph, from a fit's second
/// step on, with the same bits: where they can be (kAuto), or with an Error where they cannot
/// (kOn). They cannot on the CPU, on several devices, in fp8, under detect_anomaly, and when they
/// wait for the device or bring something there. A step with batches of another shape runs as ever.
///
/// A graph repeats what the passes have submitted, so training_step(), loss() and input() must do
/// the same in every step but for what their batches hold: what they do on the host happens once.
/// The losses that callbacks get are overwritten by the next step.
enum class Capture : uint8_t { kOff, kAuto, kOn };

enum class GradientClip : uint8_t { kNorm, kValue };

/// What becomes of a step whose gradients are not finite: it is taken, the fit ends by an Error
/// that names what first was not, or the step is left out. With a loss scale the scale answers
/// instead, but for refuse_step().
enum class Nonfinite : uint8_t { kTake, kStop, kSkip };

struct TrainerOptions {
  FabricOptions fabric = {};  // batches of a step: accumulate_grad_batches, not its accumulate

  // When it ends: whatever comes first. One of them has to be given.
  std::optional<int64_t> max_epochs = {};  // -1: no limit, as where it is left out
  std::optional<int64_t> max_steps = {};   // of the optimizer; -1: no limit
  /// Of this fit and of those that it continues.
  std::optional<std::chrono::duration<double>> max_time = {};

  Limit limit_train_batches = 1.0;  // of an epoch, on each rank
  Limit limit_val_batches = 1.0;    // 0: a fit has no validations
  Limit limit_test_batches = 1.0;
  Limit limit_predict_batches = 1.0;
  /// Training batches, of an epoch, from validation to validation; with accumulation the step at
  /// hand is finished first.
  Limit val_check_interval = 1.0;
  /// None: val_check_interval, a count then, goes on from epoch to epoch.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  /// Validation batches that are tried before anything is trained; what they log is forgotten.
  /// -1: all.
  int64_t num_sanity_val_steps = 2;

  int64_t accumulate_grad_batches = 1;  // of a step; an epoch's last may have fewer
  /// Under every strategy a step is taken as a pipeline takes it, by input() and loss() of its
  /// batches, each with its share(). A batch is a micro-batch then.
  bool micro_batches = false;
  /// With them: gradients add up as a tree over micro-batches and ranks
  /// (dist/comm/tree_accumulator.h), with the same bits on any power of two of ranks that share
  /// the micro-batches out evenly.
  bool deterministic_reduce = false;
  double gradient_clip_val = 0;  // 0: gradients are not clipped
  GradientClip gradient_clip_algorithm = GradientClip::kNorm;
  bool track_grad_norm = false;            // also without clipping by norm
  Nonfinite nonfinite = Nonfinite::kTake;  // of any rank's gradients

  int64_t log_every_n_steps = 50;   // of "_step" values, "lr" and "grad_norm"
  bool enable_progress_bar = true;  // of batches
  bool enable_table = true;         // of epochs, and what is said around it
  bool detect_anomaly = false;      // AnomalyMode
  Capture capture = Capture::kOff;
  /// Ctrl-C and SIGTERM end the fit after the step at hand (train/stop_signals.h; the caller's
  /// StopSignals count, too). On one rank they cut a validation short; a fit that goes on repeats
  /// it.
  bool handle_signals = true;

  /// Where figures and checkpoints go; empty: nowhere but to `loggers` and `callbacks`. Where those
  /// hold none, the directory gets a MetricsLogger, a TensorBoardLogger, and in "checkpoints" the
  /// state after the latest validation or epoch, and "last".
  std::string directory = {};
  std::vector<std::shared_ptr<Logger>> loggers = {};
  std::vector<std::shared_ptr<Callback>> callbacks = {};
};

class Trainer {
 public:
  /// Throws Error naming an option that is out of range.
  explicit Trainer(TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Fabric::launch(); a program on one device need not call it.
  [[nodiscard]] std::optional<int> launch(int argc, char** argv);
  void launch(dist::CommunicatorPtr world);
  Fabric& fabric() { return fabric_; }
  const Fabric& fabric() const { return fabric_; }
  /// Before fit(), after those of the options. Throws Error where two would be saved under one key.
  void add_callback(std::shared_ptr<Callback> callback);
  /// Before the module is made: its weights, and dropout.
  void seed_everything(uint64_t seed);

  /// Trains the module, which cannot be called any more when the Trainer is gone. With a
  /// `checkpoint`, a file that save_checkpoint() has written, continues exactly from there: on as
  /// many devices the parameters, the optimizer, the random numbers, the figures and the callbacks
  /// go on with the same bits, wherever in an epoch it was saved. Once for each Trainer: another
  /// one takes the module over, and so do validate(), test() and predict() of another, by
  /// Fabric::release() where the first is there still. Throws what steps and callbacks throw, and
  /// Error for what cannot work before the first step: a checkpoint of another module, a directory
  /// that cannot be written, a module that another Trainer is at work on, or that its strategy has
  /// cut.
  template <std::derived_from<TrainingModule> Module>
  void fit(Module& module, const BatchSource& train,
           const std::optional<BatchSource>& validation = {}, const std::string& checkpoint = {}) {
    fit_module(module, described(module), train, validation, checkpoint);
  }
  /// Measures a module, one that fit() was called with or another, with its own weights or those of
  /// a `checkpoint` (of averaged weights the averages), and returns what it logged: nothing where
  /// the caller's StopSignals have cut it short, on one rank.
  template <std::derived_from<TrainingModule> Module>
  NamedValues validate(Module& module, const BatchSource& source,
                       const std::string& checkpoint = {}) {
    return validate_module(module, described(module), source, checkpoint);
  }
  /// The same by test_step().
  template <std::derived_from<TrainingModule> Module>
  NamedValues test(Module& module, const BatchSource& source, const std::string& checkpoint = {}) {
    return test_module(module, described(module), source, checkpoint);
  }
  /// What predict_step() returns of each of this rank's batches, which a rank shares out as in
  /// training (Fabric::gather_for_metrics).
  template <std::derived_from<TrainingModule> Module>
  Tensors predict(Module& module, const BatchSource& source, const std::string& checkpoint = {}) {
    return predict_module(module, described(module), source, checkpoint);
  }

  /// Everything that fit() goes on from, as Fabric::save() leaves it: one file, or a directory of
  /// each rank's part. In callbacks to be called in on_save_point
  /// alone, else after fit(). Every rank calls.
  void save_checkpoint(const std::string& path);
  /// The same while training goes on, where the Fabric's state_dict_type is sharded
  /// (Fabric::async_save); fit() ends when it is there.
  void async_save_checkpoint(const std::string& path, const std::function<void()>& then = {});
  /// More figures of the step at hand, as they are, for the loggers: in on_before_optimizer_step.
  void log_figures(const NamedValues& values);
  /// Says why the step at hand is none to take ("the loss is nan"): options().nonfinite tells what
  /// becomes of it. In on_before_optimizer_step, on every rank.
  void refuse_step(const std::string& why) { refusal_ = why; }
  /// The same where `value`, one number, is not finite ("WHAT is nan"), for which a process alone
  /// does not wait before the step has been submitted.
  void refuse_nonfinite(const std::string& what, const Tensor& value) { expected_ = {what, value}; }
  /// Ends the fit after the step at hand; one rank's word is enough. `reason`: for who watches.
  void stop(const std::string& reason);

  /// The latest mean of each name.
  const NamedValues& metrics() const { return metrics_; }
  /// Throws Error, on behalf of `asker`, naming those that there are.
  double metric(const std::string& name, const char* asker = "metric") const;
  /// The same; nothing while an epoch's end, or the first validation where there are any, is still
  /// to come and may log it.
  std::optional<double> metric_so_far(const std::string& name, const char* asker) const;
  /// Whether the latest validation has logged it.
  bool was_validated(const std::string& name) const;
  /// Steps that the fit takes in all, as far as max_epochs and max_steps tell: for schedules.
  /// Throws Error when neither was given.
  int64_t estimated_steps() const;
  /// Of those that configure_optimizers() gave. Throws Error where there is none, and before a fit.
  optim::Optimizer& optimizer(size_t index = 0) const;
  size_t optimizers() const { return parts_.size(); }

  // Where the fit stands.
  int64_t epoch() const { return epoch_; }            // done
  int64_t batch() const { return batch_; }            // of the epoch: done
  int64_t batches() const { return train_batches_; }  // that an epoch has, on this rank
  /// Steps that are done: of the optimizer, or of a module that takes its steps itself the batches.
  int64_t global_step() const { return global_step_; }
  bool has_stepped() const { return has_stepped_; }          // the latest batch was a step's last
  double seconds() const { return seconds_; }                // as of the latest step; ranks agree
  bool is_stopping() const { return is_stopping_; }          // at a save point: it is the last one
  bool was_interrupted() const { return was_interrupted_; }  // by a signal
  const std::string& stop_reason() const { return stop_reason_; }
  double grad_norm() const;  // of the latest step; NaN where not asked for. Waits for the device
  bool was_skipped() const { return was_skipped_; }  // the latest step: it was left out
  bool has_validation() const { return validation_ != nullptr; }
  /// What a save point follows.
  bool has_validated() const { return has_validated_; }
  bool has_ended_epoch() const { return has_ended_epoch_; }

  /// Whether the latest step was a launch of a graph.
  bool was_captured() const { return was_captured_; }
  /// The most bytes that tensors have held on the device since its allocator's reset_peak().
  size_t peak_bytes() const;
  /// That of the optimizer of the same number; null where configure_optimizers() gave none.
  optim::Scheduler* scheduler(size_t index = 0);
  /// Where the fit stands, its figures, and each rank's random stream: what a callback that saves
  /// the rest itself keeps at a save point, and gives back in on_fit_start. Every rank calls.
  /// load_state_dict() throws Error for a place in an epoch that these ranks cannot go on from.
  nlohmann::json state_dict();
  void load_state_dict(const nlohmann::json& state);
  /// Goes on from another place, at the start of a fit: on_fit_start of callbacks that restore the
  /// rest themselves. `history`: what history() said there, on whatever ranks, or null.
  void seek(data::LoaderPosition place, int64_t global_step, const nlohmann::json& history);
  /// The part of state_dict() that has no place: the time, the figures, and whether a validation is
  /// due that a signal has cut short.
  nlohmann::json history() const;
  const TrainerOptions& options() const { return options_; }

 private:
  friend class TrainingModule;
  enum class Phase : uint8_t { kNone, kTraining, kMeasuring };
  /// An optimizer, and what sets its learning rate, if anything does.
  struct Part {
    std::shared_ptr<optim::Optimizer> optimizer;
    std::optional<optim::Scheduler> scheduler;
  };
  struct Measurement;

  template <class Module>
  static nn::ModelStructure described(Module& module) {
    nn::Module& model = module.model();
    return &model == &module ? structure_of(module) : structure_of(model);
  }
  void fit_module(TrainingModule& module, const nn::ModelStructure& structure,
                  const BatchSource& train, const std::optional<BatchSource>& validation,
                  const std::string& checkpoint);
  NamedValues validate_module(TrainingModule& module, const nn::ModelStructure& structure,
                              const BatchSource& source, const std::string& checkpoint);
  NamedValues test_module(TrainingModule& module, const nn::ModelStructure& structure,
                          const BatchSource& source, const std::string& checkpoint);
  Tensors predict_module(TrainingModule& module, const nn::ModelStructure& structure,
                         const BatchSource& source, const std::string& checkpoint);
  void launch_alone();
  void check_idle(const TrainingModule& module) const;
  template <class Hook, class... Arguments>
  void call(Hook hook, Arguments&&... arguments) {
    call_hook(options_.callbacks, hook, std::forward<Arguments>(arguments)...);
  }
  void set_up(TrainingModule& module, const nn::ModelStructure& structure,
              const std::vector<optim::Optimizer*>& optimizers = {});
  void check_steps_by_hand() const;
  NamedTensors parameters() const;
  void begin(const nn::ModelStructure& structure, const BatchSource& train,
             const std::optional<BatchSource>& validation, bool continues);
  void run(const std::string& checkpoint);
  void say(const std::string& line) const;
  void check_sanity();
  void run_epoch();
  Batch begin_batch();
  void train_batch();
  void train_micro_batches();
  double weight_of(const Batch& batch) const;
  void train_step();
  void train_by_hand();
  void train_captured();
  void capture(const std::vector<Batch>& batches, int64_t first);
  std::string why_not_captured() const;
  Tensors run_passes(const std::vector<Batch>& batches, int64_t first);
  Tensor led(TrainingModule& module, const std::function<Tensor()>& step);
  std::function<void()> pass_of(const Batch& batch, int64_t index);
  dist::MicroBatch micro_batch(const Batch& batch, double share, bool counts = true);
  void note_pass(const std::function<void()>& again);
  void compute_gradients(const std::function<void()>& pass);
  void take_step();
  std::vector<double> rates() const;
  void end_step(const std::vector<double>& rates, bool has_norm);
  Tensor norm_of_gradients(const Tensor& unscaled);
  kernels::StepGate gate(bool judges, double max_norm) const;
  bool is_refused(bool judges);
  [[noreturn]] void fail_diverged(const std::string& why, std::string cause);
  void publish_epoch();
  void check_validation();
  void end_epoch();
  void share_buffers(TrainingModule& module);
  Batch next_of(RankBatches& batches, int64_t index, int64_t count);
  std::optional<NamedValues> measure(const Measurement& how, TrainingModule& module,
                                     RankBatches& batches, int64_t count, bool ends_early);
  /// What measure(batches, count) gives for a module that is set up, with a checkpoint's weights.
  template <class Measure>
  auto with_module(TrainingModule& module, const nn::ModelStructure& structure,
                   const BatchSource& source, const std::string& checkpoint, const Limit& limit,
                   const char* option, const Measure& measure);
  void agree();
  void log_value(const std::string& name, const Tensor& value, const LogOptions& options);
  void publish(const NamedValues& values, const NamedValues& besides = {});
  void load_checkpoint(const std::string& path);
  void set_position(int64_t epoch, int64_t batch, int64_t global_step);
  void load_history(const nlohmann::json& history);
  struct Saved;
  std::vector<NamedState> states(Saved& saved);
  void save_states(const std::string& path, const std::function<void()>& then);
  static std::vector<NamedState> model_states(TrainingModule& module);

  TrainerOptions options_;
  Fabric fabric_;
  bool is_launched_ = false;
  std::unique_ptr<io::DirectoryLock> lock_;
  std::vector<std::shared_ptr<Logger>> loggers_;  // on rank 0

  TrainingModule* module_ = nullptr;  // that of fit()
  std::unique_ptr<RankBatches> train_, validation_;
  bool is_of_one_loader_ = false;  // both of them
  int64_t train_batches_ = 0, validation_batches_ = 0, validation_interval_ = 0;
  std::vector<Part> parts_;

  int64_t epoch_ = 0, batch_ = 0, global_step_ = 0;
  int64_t batches_in_step_ = 0;
  bool has_stepped_ = false, has_validated_ = false, has_ended_epoch_ = false;
  bool is_validation_due_ = false;  // before the next step
  bool is_save_point_ = true;
  bool heeds_signals_ = false;
  bool wants_stop_ = false, is_stopping_ = false, was_interrupted_ = false;
  std::string stop_reason_;
  double seconds_ = 0, seconds_before_ = 0;  // those of the fits that this one continues
  std::chrono::steady_clock::time_point start_;
  Tensor grad_norm_;  // f64 []; undefined where not asked for
  bool was_skipped_ = false;
  std::string refusal_;  // why the step at hand is none to take; empty: it is one
  struct Expected {
    std::string what;
    Tensor value;
  } expected_;  // to be finite
  /// Forward and backward of a batch of the step at hand, and what its loss was: kept where a fit
  /// that diverges has to tell what first was not finite.
  struct Pass {
    std::function<void()> again;
    Tensor loss;
  };
  std::vector<Pass> passes_;
  bool captures_ = false, has_warmed_up_ = false, was_captured_ = false;
  std::unique_ptr<CapturedPasses> captured_;
  CapturedPasses* recording_ = nullptr;  // while it is captured
  bool is_pipelined_ = false;
  Tensor loss_;          // of the latest batch; undefined on a pipeline's ranks that have none
  int64_t samples_ = 0;  // of this rank, since the epoch began here

  Phase phase_ = Phase::kNone;
  double weight_ = 0;  // of what is logged
  LoggedMeans epoch_means_, step_means_, measured_means_;
  NamedValues metrics_, step_figures_;
  bool has_epoch_means_ = false;                       // of an epoch that has ended in this fit
  std::optional<std::vector<std::string>> validated_;  // what the latest validation has logged
};

}  // namespace weft::train
