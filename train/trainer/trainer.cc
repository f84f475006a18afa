#include "train/trainer/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/finite.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/log.h"
#include "core/scoped_value.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/strategy/strategy_kind.h"
#include "io/nearest.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "optim/clip.h"
#include "train/stop_signals.h"
#include "train/trainer/model_checkpoint.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Samples of this rank's latest batch that count in means: those that no other rank has as well.
double weight_of(const Batch& batch, const Fabric& fabric) {
  if (!fabric.strategy().counts()) return 0;
  const auto counted = std::ranges::find_if(batch, [](const Tensor& x) { return x.dim() > 0; });
  const int64_t rows = counted == batch.end() ? 1 : counted->size(0);
  return static_cast<double>(std::max<int64_t>(0, rows - fabric.latest_batch().fillers));
}

std::FILE* progress_stream(bool is_shown) {
  static std::FILE* const nowhere = std::fopen("/dev/null", "w");
  return is_shown || !nowhere ? stderr : nowhere;
}

void check_positive(const char* option, int64_t value) {
  WEFT_CHECK(value > 0, "{}: expected a positive number, got {}", option, value);
}

}  // namespace

int64_t Limit::of(int64_t all, const char* option) const {
  constexpr const char* kExpected = "{}: expected a positive count or a fraction in (0, 1], got {}";
  if (count) {
    WEFT_CHECK(*count > 0, kExpected, option, *count);
    return std::min(*count, all);
  }
  WEFT_CHECK(fraction > 0 && fraction <= 1, kExpected, option, fraction);
  const auto part = static_cast<int64_t>(fraction * static_cast<double>(all));
  WEFT_CHECK(part > 0, "{}: {} of {} batches is none", option, fraction, all);
  return part;
}

Trainer::Trainer(TrainerOptions options) : options_(std::move(options)), fabric_(options_.fabric) {
  WEFT_CHECK(options_.fabric.accumulate == 1,
             "trainer: set accumulate_grad_batches instead of Fabric's accumulate, got {}",
             options_.fabric.accumulate);
  WEFT_CHECK(options_.fabric.loggers.empty() && options_.fabric.callbacks.empty(),
             "trainer: set its own loggers and callbacks instead of Fabric's");
  WEFT_CHECK(options_.max_epochs || options_.max_steps || options_.max_time,
             "trainer: say when to stop: max_epochs, max_steps or max_time");
  if (options_.max_epochs) check_positive("max_epochs", *options_.max_epochs);
  if (options_.max_steps) check_positive("max_steps", *options_.max_steps);
  WEFT_CHECK(!options_.max_time || options_.max_time->count() > 0,
             "max_time: expected a positive duration, got {} s", options_.max_time->count());
  constexpr int64_t kMany = 1 << 30;
  options_.limit_train_batches.of(kMany, "limit_train_batches");
  options_.limit_val_batches.of(kMany, "limit_val_batches");
  options_.val_check_interval.of(kMany, "val_check_interval");
  check_positive("check_val_every_n_epoch", options_.check_val_every_n_epoch);
  check_positive("accumulate_grad_batches", options_.accumulate_grad_batches);
  check_positive("log_every_n_steps", options_.log_every_n_steps);
  WEFT_CHECK(options_.num_sanity_val_steps >= -1,
             "num_sanity_val_steps: expected a number of batches, or -1 for all, got {}",
             options_.num_sanity_val_steps);
  WEFT_CHECK(options_.gradient_clip_val >= 0 && std::isfinite(options_.gradient_clip_val),
             "gradient_clip_val: expected a positive limit, or 0 for none, got {}",
             options_.gradient_clip_val);
  const auto writes = [](const auto& callback) {
    return dynamic_cast<const ModelCheckpoint*>(callback.get()) != nullptr;
  };
  if (!options_.directory.empty() && std::ranges::none_of(options_.callbacks, writes)) {
    options_.callbacks.push_back(
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.save_last = true}));
  }
  for (auto& callback : std::exchange(options_.callbacks, {})) add_callback(std::move(callback));
  for (const auto& logger : options_.loggers) WEFT_CHECK(logger, "trainer: a logger is null");
}

Trainer::~Trainer() = default;

void Trainer::add_callback(std::shared_ptr<Callback> callback) {
  WEFT_CHECK(callback, "trainer: a callback is null");
  WEFT_CHECK(!module_, "trainer: a callback is added before fit()");
  const std::string key = callback->state_key();
  const bool is_taken = !key.empty() && std::ranges::any_of(options_.callbacks, [&](const auto& c) {
    return c->state_key() == key;
  });
  WEFT_CHECK(!is_taken, "trainer: two callbacks would be saved as \"{}\"", key);
  options_.callbacks.push_back(std::move(callback));
}

std::optional<int> Trainer::launch(int argc, char** argv) {
  const std::optional<int> code = fabric_.launch(argc, argv);
  is_launched_ = !code;
  return code;
}

void Trainer::launch(dist::CommunicatorPtr world) {
  fabric_.launch(std::move(world));
  is_launched_ = true;
}

/// A program on one device need not launch.
void Trainer::launch_alone() {
  if (!is_launched_) launch(nullptr);
}

void Trainer::seed_everything(uint64_t seed) {
  launch_alone();
  fabric_.seed_everything(seed);
}

template <class Hook, class... Arguments>
void Trainer::call(Hook hook, Arguments&&... arguments) {
  call_hook(options_.callbacks, hook, std::forward<Arguments>(arguments)...);
}

// What fit() does before the first step.

void Trainer::fit_module(TrainingModule& module, const nn::ModelStructure& structure,
                         const BatchSource& train, const std::optional<BatchSource>& validation,
                         const std::string& checkpoint) {
  WEFT_CHECK(!module_, "trainer: fit() was called already; another fit needs another Trainer");
  launch_alone();
  module_ = &module;
  const ScopedValue at_work(module.trainer_, this);
  // Ranks may be threads of one process, which has its signals once.
  heeds_signals_ = options_.handle_signals && (fabric_.size() == 1 || dist::is_rank());
  std::optional<StopSignals> signals;
  if (heeds_signals_ && !StopSignals::are_watched()) signals.emplace();
  is_save_point_ = false;
  try {
    begin(structure, train, validation, !checkpoint.empty());
    run(checkpoint);
  } catch (const std::exception& error) {
    call(&Callback::on_exception, *this, module, error);
    for (const auto& logger : loggers_) logger->finish();
    throw;
  }
  is_save_point_ = true;
}

void Trainer::set_up(TrainingModule& module, const nn::ModelStructure& structure) {
  if (!module.model().has_route()) fabric_.setup_model(module.model(), structure);
}

void Trainer::begin(const nn::ModelStructure& structure, const BatchSource& train,
                    const std::optional<BatchSource>& validation, bool continues) {
  train_ = train.share(fabric_);
  train_batches_ = options_.limit_train_batches.of(train_->per_epoch(), "limit_train_batches");
  if (validation) {
    validation_ = validation->share(fabric_);
    validation_batches_ =
        options_.limit_val_batches.of(validation_->per_epoch(), "limit_val_batches");
    const Limit& interval = options_.val_check_interval;
    validation_interval_ = interval.of(train_batches_, "val_check_interval");
    WEFT_CHECK(!interval.count || *interval.count <= train_batches_,
               "val_check_interval: {} batches, but an epoch has {}; see check_val_every_n_epoch",
               *interval.count, train_batches_);
  }
  Optimization optimization = module_->configure_optimizers();
  WEFT_CHECK(optimization.optimizer, "trainer: configure_optimizers() returned none");
  optimizer_ = std::move(optimization.optimizer);
  set_up(*module_, structure);
  const dist::StrategyKind& kind = dist::strategy_of(fabric_.options().strategy, fabric_.size());
  is_pipelined_ = contains(kind.settings, dist::Settings::kPipelineStages);
  fabric_.setup_optimizer(*optimizer_);
  if (options_.capture != Capture::kOff) {
    const std::string obstacle = why_not_captured();
    WEFT_CHECK(obstacle.empty() || options_.capture == Capture::kAuto,
               "capture: the step cannot be captured: {}", obstacle);
    captures_ = obstacle.empty();
  }
  if (optimization.schedule) scheduler_.emplace(*optimizer_, optimization.schedule);
  if (!fabric_.is_main()) return;
  loggers_ = options_.loggers;
  if (!options_.directory.empty()) {
    const io::Path directory = options_.directory;
    io::make_directories(directory);
    lock_ = std::make_unique<io::DirectoryLock>(directory);
    WEFT_CHECK(
        continues || !std::filesystem::exists(directory / "metrics.jsonl"),
        "trainer: {} already holds a run; continue one of its checkpoints, or choose another "
        "directory",
        directory.string());
    if (loggers_.empty()) {
      loggers_ = {std::make_shared<MetricsLogger>(directory),
                  std::make_shared<TensorBoardLogger>(directory)};
    }
  }
  if (options_.enable_table) loggers_.push_back(std::make_shared<ConsoleLogger>());
}

void Trainer::run(const std::string& checkpoint) {
  std::optional<AnomalyMode> checked;
  if (options_.detect_anomaly) checked.emplace();
  call(&Callback::on_fit_start, *this, *module_);
  if (!checkpoint.empty()) {
    load_checkpoint(checkpoint);
    say(fmt::format("going on from {} at epoch {}, batch {}, step {}", checkpoint, epoch_, batch_,
                    global_step_));
  }
  for (const auto& logger : loggers_) logger->begin(global_step_);
  check_sanity();
  start_ = Clock::now();
  seconds_before_ = seconds_;
  call(&Callback::on_train_start, *this, *module_);
  agree();
  while (!is_stopping_) run_epoch();
  call(&Callback::on_train_end, *this, *module_);
  fabric_.wait_for_save();
  call(&Callback::on_fit_end, *this, *module_);
  for (const auto& logger : loggers_) logger->finish();
  say(fmt::format("stopped at epoch {}, batch {}, step {}: {}", epoch_, batch_, global_step_,
                  stop_reason_));
  if (!was_interrupted_) return;
  for (const auto& callback : options_.callbacks) {
    const auto* const saved = dynamic_cast<const ModelCheckpoint*>(callback.get());
    if (saved) say("saved as " + saved->last_model_path());
  }
}

void Trainer::say(const std::string& line) const {
  if (options_.enable_table) fabric_.print("{}\n", line);
}

void Trainer::check_sanity() {
  if (!validation_ || options_.num_sanity_val_steps == 0) return;
  const Generator before = generator();
  call(&Callback::on_sanity_check_start, *this, *module_);
  const int64_t asked = options_.num_sanity_val_steps;
  measure(*module_, *validation_,
          asked < 0 ? validation_batches_ : std::min(asked, validation_batches_), false);
  call(&Callback::on_sanity_check_end, *this, *module_);
  generator() = before;
}

// The loop.

/// What is left of an epoch, or of what the fit takes of it.
void Trainer::run_epoch() {
  train_->seek({epoch_, batch_});
  module_->model().train();
  samples_ = 0;
  if (batch_ == 0) {
    module_->on_train_epoch_start();
    call(&Callback::on_train_epoch_start, *this, *module_);
  }
  const bool is_shown = options_.enable_progress_bar && fabric_.is_main();
  const std::string of_all =
      options_.max_epochs ? fmt::format("/{}", *options_.max_epochs) : std::string();
  io::Progress progress(
      fmt::format("epoch {}{}", epoch_ + 1, of_all), train_batches_,
      {.out = progress_stream(is_shown), .first_step = batch_, .unit = "samples"});
  while (batch_ < train_batches_ || is_validation_due_) {
    // Else a signal has cut a validation short.
    if (!is_validation_due_) {
      const int64_t before = batch_;
      train_step();
      // To look at the loss is to wait for the device.
      const bool looks = fabric_.device().type == DeviceType::cpu ||
                         global_step_ % options_.log_every_n_steps == 0;
      if (is_shown) {
        progress.update(batch_, samples_ * fabric_.data_size(),
                        looks && loss_.defined() ? loss_.item() : NAN);
      }
      is_validation_due_ = validation_ &&
                           batch_ / validation_interval_ > before / validation_interval_ &&
                           (epoch_ + 1) % options_.check_val_every_n_epoch == 0;
      if (batch_ == train_batches_) {
        progress.finish();
        publish_epoch();
      }
    }
    has_validated_ = false;
    if (is_validation_due_) check_validation();
    has_ended_epoch_ = batch_ == train_batches_ && !is_validation_due_;
    if (has_ended_epoch_) end_epoch();
    agree();
    is_save_point_ = true;
    call(&Callback::on_save_point, *this, *module_);
    is_save_point_ = false;
    if (has_ended_epoch_ || is_stopping_) return;
  }
}

Batch Trainer::next_of(RankBatches& batches, int64_t index, int64_t count) {
  std::optional<Batch> batch = batches.next();
  WEFT_CHECK(batch && !batch->empty(), "trainer: a loader of {} batches ended after {}", count,
             index);
  weight_ = weight_of(*batch, fabric_);
  return std::move(*batch);
}

Batch Trainer::begin_batch() {
  Batch batch = next_of(*train_, batch_, train_batches_);
  has_stepped_ =
      ++batches_in_step_ == options_.accumulate_grad_batches || batch_ + 1 == train_batches_;
  call(&Callback::on_train_batch_start, *this, *module_, batch, batch_);
  samples_ += static_cast<int64_t>(weight_);
  return batch;
}

void Trainer::train_step() {
  was_captured_ = false;
  if (captures_ && has_warmed_up_) return train_captured();
  do is_pipelined_ || options_.micro_batches ? train_micro_batches() : train_batch();
  while (!has_stepped_);
  has_warmed_up_ = true;
}

/// Forward and backward of a batch; loss_ is what it came to.
std::function<void()> Trainer::pass_of(const Batch& batch, int64_t index) {
  return [this, batch, index, in_step = options_.accumulate_grad_batches] {
    const Tensor loss = module_->training_step(batch, index);
    WEFT_CHECK(loss.defined() && loss.numel() == 1,
               "trainer: expected training_step() to return one number, the loss, got {}",
               loss.defined() ? fmt::format("{}", loss) : "nothing");
    fabric_.backward(in_step == 1 ? loss : loss * (1.0 / static_cast<double>(in_step)));
    loss_ = detach(loss);
  };
}

void Trainer::train_batch() {
  const Batch batch = begin_batch();
  if (batches_in_step_ == 1) optimizer_->zero_grad();
  const int64_t index = batch_;
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    const auto local = fabric_.no_backward_sync(module_->model(), !has_stepped_);
    const std::function<void()> pass = pass_of(batch, index);
    compute_gradients(pass);
    note_pass(pass);
  }
  ++batch_;
  if (has_stepped_) take_step();
  call(&Callback::on_train_batch_end, *this, *module_, loss_, batch, index);
}

/// A batch, or a part of one, as strategies take it.
dist::MicroBatch Trainer::micro_batch(const Batch& batch, double share) {
  const Precision& precision = find_precision(fabric_.options().precision);
  Tensor input = module_->input(batch);
  if (is_floating(input.dtype())) input = ops::cast(input, precision.parameters);
  const auto loss = [this, &precision, batch, share](const Tensor& output) {
    weight_ = weight_of(batch, fabric_);
    const Tensor mean = module_->loss(widened(output, precision), batch);
    loss_ = detach(mean);
    note_pass([this, batch, share] {
      fabric_.run({.count = 1, .at = [&](int64_t) { return micro_batch(batch, share); }});
    });
    return fabric_.scaled(mean * share);
  };
  return {input, loss};
}

/// A step by input() and loss(), in the strategy's own order.
void Trainer::train_micro_batches() {
  const int64_t first = batch_;
  const int64_t count = std::min(options_.accumulate_grad_batches, train_batches_ - batch_);
  // A pipeline cuts batches that are not cut yet.
  const int64_t parts = options_.micro_batches ? 1 : fabric_.strategy().micro_batches();
  std::vector<Batch> batches;
  int64_t ended = 0;
  const auto end_next = [&] {
    Batch& batch = batches[ended];
    call(&Callback::on_train_batch_end, *this, *module_, loss_, batch, first + ended);
    batch.clear();
    ++ended;
  };
  const auto piece_of = [&](const Batch& batch, int64_t part) {
    if (parts == 1) return batch;
    const int64_t rows = batch.at(0).size(0);
    const int64_t begin = part * rows / parts, end = (part + 1) * rows / parts;
    WEFT_CHECK(begin < end, "trainer: a batch of {} samples has no {} micro-batches", rows, parts);
    Batch piece;
    for (const Tensor& x : batch) piece.push_back(ops::narrow(x, 0, begin, end - begin));
    return piece;
  };
  const auto at = [&](int64_t i) {
    if (i % parts == 0) {
      if (!is_pipelined_ && i > 0) end_next();
      batches.push_back(begin_batch());
      ++batch_;
    }
    const Batch& batch = batches.back();
    const Batch piece = piece_of(batch, i % parts);
    return micro_batch(piece,
                       module_->share(batch, count) * (static_cast<double>(piece.at(0).size(0)) /
                                                       static_cast<double>(batch.at(0).size(0))));
  };
  loss_ = {};
  optimizer_->zero_grad();
  dist::TreeAccumulator tree;
  dist::MicroBatches step = {.count = count * parts, .at = at};
  if (options_.deterministic_reduce) {
    step.accumulates = false;
    step.after_each = [&] { tree.push(dist::take_gradients(optimizer_->parameters())); };
  }
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    compute_gradients([&] { fabric_.run(step); });
  }
  if (options_.deterministic_reduce) {
    dist::set_gradients(optimizer_->parameters(), tree.finish());
  }
  take_step();
  while (ended < count) {
    has_stepped_ = ended + 1 == count;
    end_next();
  }
}

/// Empty where they can be, as far as can be told beforehand.
std::string Trainer::why_not_captured() const {
  const Precision& precision = find_precision(fabric_.options().precision);
  if (fabric_.device().type != DeviceType::cuda) {
    return fmt::format("{} has no graphs", to_string(fabric_.device()));
  }
  if (fabric_.size() > 1) {
    return "the host watches over what ranks send each other, call by call, and would not see a "
           "rank fail inside a graph";
  }
  if (fabric_.data_devices() > 1) return "several devices meet in the middle of it";
  if (options_.deterministic_reduce) return "deterministic_reduce adds on the host";
  if (options_.detect_anomaly) return "detect_anomaly looks at every result";
  if (precision.is_fp8()) return "fp8 waits for the device to choose its scales";
  return {};
}

/// The passes of a step whose batches are there, for a process alone.
void Trainer::run_passes(const std::vector<Batch>& batches, int64_t first) {
  const auto count = static_cast<int64_t>(batches.size());
  const auto ended = [&] {
    if (recording_) recording_->add_loss(loss_);
  };
  if (options_.micro_batches) {
    fabric_.run({.count = count, .at = [&](int64_t i) {
                   if (i > 0) ended();
                   return micro_batch(batches[i], module_->share(batches[i], count));
                 }});
    return ended();
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::function<void()> pass = pass_of(batches[i], first + i);
    pass();
    note_pass(pass);
    ended();
  }
}

/// Where that cannot be, steps go on as they were.
void Trainer::capture(const std::vector<Batch>& batches, int64_t first) {
  const Generator before = generator();
  captured_ = std::make_unique<CapturedPasses>(fabric_.device(), module_->model().parameters());
  try {
    const ScopedValue recording(recording_, captured_.get());
    captured_->capture(batches,
                       [&](const std::vector<Batch>& copies) { run_passes(copies, first); });
  } catch (const Error& error) {
    WEFT_CHECK(options_.capture != Capture::kOn, "capture: step {} cannot be captured: {}",
               global_step_ + 1, error.what());
    log_once(fmt::format("steps are not captured: {}", error.what()));
    captured_.reset();
    captures_ = false;
    generator() = before;
    optimizer_->zero_grad();
  }
}

/// A step whose passes are a graph, which is captured when there is none yet.
void Trainer::train_captured() {
  const int64_t first = batch_;
  std::vector<Batch> batches, there;
  std::vector<double> weights;
  do {
    batches.push_back(begin_batch());
    weights.push_back(weight_);
    Batch& batch = there.emplace_back();
    for (const Tensor& x : batches.back()) batch.push_back(ops::to(x, fabric_.device()));
    ++batch_;
  } while (!has_stepped_);
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    optimizer_->zero_grad();
    if (!captured_) capture(there, first);
    was_captured_ = captured_ && captured_->fits(there);
    if (was_captured_) {
      fabric_.scaler().bring();
      captured_->launch(there);
      for (const CapturedPasses::Logged& logged : captured_->logged()) {
        weight_ = weights[logged.pass];
        log_value(logged.name, logged.value, logged.options);
      }
      for (size_t i = 0; i < there.size(); ++i) {
        loss_ = captured_->losses()[i];
        note_pass([this, batch = there[i], first] { run_passes({batch}, first); });
      }
    } else {
      run_passes(there, first);
    }
  }
  take_step();
  for (size_t i = 0; i < batches.size(); ++i) {
    has_stepped_ = i + 1 == batches.size();
    if (was_captured_) loss_ = captured_->losses()[i];
    call(&Callback::on_train_batch_end, *this, *module_, loss_, batches[i],
         first + static_cast<int64_t>(i));
  }
}

void Trainer::compute_gradients(const std::function<void()>& pass) {
  try {
    pass();
  } catch (const Error& error) {
    if (!options_.detect_anomaly) throw;
    WEFT_FAIL("step {}: {}", global_step_ + 1, error.what());
  }
}

/// After a pass: loss_ is its own.
void Trainer::note_pass(const std::function<void()>& again) {
  if (options_.nonfinite != Nonfinite::kStop || recording_ || !loss_.defined()) return;
  if (!passes_.empty() && loss_.device().type == DeviceType::cpu) {
    if (!std::isfinite(passes_[0].loss.item())) return;
    passes_.clear();
  }
  passes_.push_back({again, loss_});
}

void Trainer::take_step() {
  const Tensor unscaled_norm = fabric_.unread_unscale(*optimizer_);
  refusal_.clear();
  expected_ = {};
  call(&Callback::on_before_optimizer_step, *this, *module_, *optimizer_);
  const double limit = options_.gradient_clip_val;
  const bool clips_norm = limit > 0 && options_.gradient_clip_algorithm == GradientClip::kNorm;
  const bool clips_value = limit > 0 && !clips_norm;
  const bool judges = options_.nonfinite != Nonfinite::kTake && !fabric_.scaler().is_enabled();
  const bool has_norm = clips_norm || options_.track_grad_norm || judges;
  grad_norm_ = has_norm ? norm_of_gradients(unscaled_norm) : Tensor();
  const double lr = optimizer_->lr();
  // What is not finite decides on the device, and the host looks when the step is on its way; but a
  // word of the host's is known, and values that are clipped would hide what was not finite.
  const bool looks_first = !refusal_.empty() || (clips_value && judges);
  bool is_left_out = looks_first && is_refused(judges);
  was_skipped_ = is_left_out;
  if (is_left_out) {
    fabric_.skip_step();
  } else {
    if (clips_value) optim::clip_grad_value(module_->model().parameters(), limit);
    was_skipped_ = !fabric_.step(*optimizer_, 1, gate(judges, clips_norm ? limit : 0));
    if (!looks_first && is_refused(judges)) {
      optimizer_->retract();
      was_skipped_ = is_left_out = true;
    }
    if (scheduler_ && !is_left_out) scheduler_->step();
  }
  passes_.clear();
  batches_in_step_ = 0;
  ++global_step_;
  NamedValues values;
  if (global_step_ % options_.log_every_n_steps == 0) {
    values = step_means_.means(fabric_);
    step_means_.clear();
    for (auto& [name, value] : values) name += "_step";
    values.emplace_back("lr", lr);
    if (has_norm) values.emplace_back("grad_norm", grad_norm());
  }
  publish(values, std::exchange(step_figures_, {}));
}

/// `unscaled`: of this rank's, as the loss scale's unscaling has found it.
Tensor Trainer::norm_of_gradients(const Tensor& unscaled) {
  // Exactly summed, also where one rank has them all.
  if (options_.deterministic_reduce) {
    const double squares = fabric_.strategy().squares(optimizer_->parameters()).value();
    return Tensor::scalar(std::sqrt(squares), DType::f64);
  }
  const bool is_alone = fabric_.size() == 1 && fabric_.data_devices() == 1;
  if (fabric_.scaler().is_enabled() && is_alone) {
    return unscaled.defined() ? unscaled : Tensor::scalar(0, DType::f64);
  }
  return optim::unread_norm(module_->model().parameters());
}

double Trainer::grad_norm() const { return grad_norm_.defined() ? grad_norm_.item() : NAN; }

size_t Trainer::peak_bytes() const {
  const size_t here = allocator(fabric_.device()).stats().peak_live;
  return was_captured_ ? std::max(here, captured_->peak_bytes()) : here;
}

/// What leaves the step out, or shortens it, where it runs.
kernels::StepGate Trainer::gate(bool judges, double max_norm) const {
  kernels::StepGate gate = {.norm = grad_norm_, .max_norm = max_norm, .needs_finite = judges};
  const bool heeds = options_.nonfinite == Nonfinite::kStop || judges;  // see is_refused()
  if (expected_.value.defined() && heeds) {
    gate.skip = Tensor::empty({}, DType::f32, expected_.value.device());
    kernels::multi_tensor_scale({.tensors = {expected_.value}, .found_inf = gate.skip});
  }
  return gate;
}

/// Whether the step at hand is to be left out. Throws where nothing would get better by it, the
/// weights themselves being lost, and where it was not asked for.
bool Trainer::is_refused(bool judges) {
  if (options_.nonfinite == Nonfinite::kTake) return false;
  std::string why = refusal_;
  if (why.empty() && expected_.value.defined()) {
    const double value = expected_.value.item();
    if (!std::isfinite(value)) {
      why = fmt::format("{} is {}", expected_.what, std::isnan(value) ? NAN : value);
    }
  }
  if (why.empty() && judges && !std::isfinite(grad_norm())) why = "a gradient is not finite";
  if (why.empty()) return false;
  const std::string lost = first_nonfinite(module_->model().named_parameters());
  if (!lost.empty()) fail_diverged(why, lost + " is not finite");
  if (options_.nonfinite == Nonfinite::kStop) fail_diverged(why, "");
  return !fabric_.scaler().is_enabled();  // which leaves it out itself, and becomes smaller
}

/// With a cause, as far as it can be told.
void Trainer::fail_diverged(const std::string& why, std::string cause) {
  if (cause.empty()) {
    NamedTensors gradients;
    for (const auto& [name, parameter] : module_->model().named_parameters()) {
      gradients.emplace_back(name, parameter.grad());
    }
    // Backward comes to the last ones first.
    std::ranges::reverse(gradients);
    const std::string gradient = first_nonfinite(gradients);
    // Several ranks would have to repeat the step together.
    if (fabric_.size() == 1) {
      const AnomalyMode checked;
      const ScopedValue phase(phase_, Phase::kTraining);
      const std::vector<Pass> passes = std::exchange(passes_, {});
      const auto suspect = std::ranges::find_if(
          passes, [](const Pass& pass) { return !std::isfinite(pass.loss.item()); });
      try {
        (suspect == passes.end() ? passes.back() : *suspect).again();
      } catch (const Error& error) {
        cause = error.what();
      }
    }
    if (!gradient.empty()) {
      cause += fmt::format("{}first in the gradient of {}", cause.empty() ? "" : "; ", gradient);
    }
  }
  WEFT_FAIL("training diverged at step {}: {}{}; try a lower learning rate, or nonfinite = skip",
            global_step_ + 1, why, cause.empty() ? "" : fmt::format(" ({})", cause));
}

/// The means of an epoch whose batches are done.
void Trainer::publish_epoch() {
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    weight_ = fabric_.strategy().counts();
    module_->on_train_epoch_end();
  }
  publish(epoch_means_.means(fabric_));
  epoch_means_.clear();
}

void Trainer::end_epoch() {
  call(&Callback::on_train_epoch_end, *this, *module_);
  for (const auto& logger : loggers_) logger->end_epoch(epoch_, global_step_, metrics_);
  ++epoch_;
  batch_ = 0;
}

void Trainer::check_validation() {
  call(&Callback::on_validation_start, *this, *module_);
  const std::optional<NamedValues> means =
      measure(*module_, *validation_, validation_batches_, heeds_signals_ && fabric_.size() == 1);
  has_validated_ = means.has_value();
  is_validation_due_ = !means;
  if (means) publish(*means);
  call(&Callback::on_validation_end, *this, *module_);
  module_->model().train();
}

/// Nothing where it `ends_early` and a signal has come.
std::optional<NamedValues> Trainer::measure(TrainingModule& module, RankBatches& batches,
                                            int64_t count, bool ends_early) {
  const NoGrad guard;
  const ScopedValue phase(phase_, Phase::kValidation);
  validation_means_.clear();
  module.model().eval();
  batches.seek({0, 0});
  module.on_validation_epoch_start();
  for (int64_t i = 0; i < count; ++i) {
    if (ends_early && StopSignals::requested()) return std::nullopt;
    const Batch batch = next_of(batches, i, count);
    module.validation_step(batch, i);
    call(&Callback::on_validation_batch_end, *this, module, batch, i);
  }
  weight_ = fabric_.strategy().counts();
  module.on_validation_epoch_end();
  return validation_means_.means(fabric_);
}

NamedValues Trainer::validate_module(TrainingModule& module, const nn::ModelStructure& structure,
                                     const BatchSource& source) {
  launch_alone();
  const ScopedValue at_work(module.trainer_, this);
  set_up(module, structure);
  const std::unique_ptr<RankBatches> batches = source.share(fabric_);
  const bool was_training = module.model().is_training();
  const int64_t count = options_.limit_val_batches.of(batches->per_epoch(), "limit_val_batches");
  const bool ends_early = fabric_.size() == 1 && StopSignals::are_watched();
  const std::optional<NamedValues> values = measure(module, *batches, count, ends_early);
  module.model().train(was_training);
  return values.value_or(NamedValues());
}

// What ranks decide together.

/// Whether the fit ends here. Clocks differ, and a signal or a callback may reach one rank alone.
void Trainer::agree() {
  seconds_ = seconds_before_ + seconds_since(start_);
  was_interrupted_ = heeds_signals_ && StopSignals::requested();
  if (fabric_.size() > 1) {
    const Tensor all = Tensor::from(
        std::vector<double>{seconds_, wants_stop_ ? 1.0 : 0.0, was_interrupted_ ? 1.0 : 0.0}, {3});
    fabric_.all_reduce(all, dist::ReduceOp::kMax);
    const double* const most = all.data<double>();
    seconds_ = most[0];
    if (most[1] > 0 && !wants_stop_) stop("another rank has asked for it");
    was_interrupted_ = most[2] > 0;
  }
  const auto reaches = [&](const char* option, const auto& limit, auto value) {
    if (limit && value >= *limit) stop(fmt::format("{} = {}", option, *limit));
  };
  if (was_interrupted_) stop("a signal");
  if (!wants_stop_) reaches("max_steps", options_.max_steps, global_step_);
  if (!wants_stop_) reaches("max_epochs", options_.max_epochs, epoch_);
  if (!wants_stop_ && options_.max_time && seconds_ >= options_.max_time->count()) {
    stop(fmt::format("max_time = {} s", options_.max_time->count()));
  }
  is_stopping_ = wants_stop_;
}

void Trainer::stop(const std::string& reason) {
  wants_stop_ = true;
  stop_reason_ = reason;
}

// Figures.

void Trainer::log_value(const std::string& name, const Tensor& value, const LogOptions& options) {
  WEFT_CHECK(phase_ != Phase::kNone, "log: \"{}\": in a step, or where an epoch's means end", name);
  if (recording_) return recording_->log(name, value, options);
  if (phase_ == Phase::kValidation) return validation_means_.add(name, value, weight_);
  if (options.on_epoch) epoch_means_.add(name, value, weight_);
  const bool is_due = (global_step_ + 1) % options_.log_every_n_steps == 0;
  if (options.on_step && is_due) step_means_.add(name, value, weight_);
}

void Trainer::log_figures(const NamedValues& values) {
  step_figures_.insert(step_figures_.end(), values.begin(), values.end());
}

/// `besides` goes to the loggers alone.
void Trainer::publish(const NamedValues& values, const NamedValues& besides) {
  if (values.empty() && besides.empty()) return;
  for (const auto& [name, value] : values) {
    const auto known = std::ranges::find(metrics_, name, &NamedValues::value_type::first);
    if (known != metrics_.end()) {
      known->second = value;
    } else {
      metrics_.emplace_back(name, value);
    }
  }
  NamedValues line = {{"epoch", static_cast<double>(epoch_)}};
  line.insert(line.end(), values.begin(), values.end());
  line.insert(line.end(), besides.begin(), besides.end());
  for (const auto& logger : loggers_) logger->log_metrics(global_step_, line);
}

double Trainer::metric(const std::string& name, const char* asker) const {
  std::vector<std::string> names;
  for (const auto& [known, value] : metrics_) {
    if (known == name) return value;
    names.push_back(known);
  }
  WEFT_FAIL("{}: nothing was logged as \"{}\"; there are: {}{}", asker, name,
            names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
            io::did_you_mean(name, names));
}

int64_t Trainer::estimated_steps() const {
  const int64_t in_step = options_.accumulate_grad_batches;
  std::optional<int64_t> steps = options_.max_steps;
  if (options_.max_epochs) {
    const int64_t all = *options_.max_epochs * ((train_batches_ + in_step - 1) / in_step);
    steps = std::min(steps.value_or(all), all);
  }
  WEFT_CHECK(steps, "estimated_steps: the fit has neither max_epochs nor max_steps");
  return *steps;
}

optim::Optimizer& Trainer::optimizer() const {
  WEFT_CHECK(optimizer_, "trainer: there is no optimizer before fit()");
  return *optimizer_;
}

}  // namespace weft::train
