#include "train/trainer/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/scoped_value.h"
#include "dist/comm/processes/join.h"
#include "dist/strategy/strategy_kind.h"
#include "io/nearest.h"
#include "train/stop_signals.h"
#include "train/trainer/model_checkpoint.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

std::FILE* progress_stream(bool is_shown) {
  static std::FILE* const nowhere = std::fopen("/dev/null", "w");
  return is_shown || !nowhere ? stderr : nowhere;
}

void check_positive(const char* option, int64_t value) {
  WEFT_CHECK(value > 0, "{}: expected a positive number, got {}", option, value);
}

}  // namespace

Trainer::Trainer(TrainerOptions options) : options_(std::move(options)), fabric_(options_.fabric) {
  constexpr int64_t kNoLimit = -1;
  if (options_.max_epochs == kNoLimit) options_.max_epochs.reset();
  if (options_.max_steps == kNoLimit) options_.max_steps.reset();
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
  options_.limit_train_batches.check("limit_train_batches");
  if (!options_.limit_val_batches.is_zero()) options_.limit_val_batches.check("limit_val_batches");
  options_.limit_test_batches.check("limit_test_batches");
  options_.limit_predict_batches.check("limit_predict_batches");
  options_.val_check_interval.check("val_check_interval");
  if (options_.check_val_every_n_epoch) {
    check_positive("check_val_every_n_epoch", *options_.check_val_every_n_epoch);
  }
  WEFT_CHECK(options_.check_val_every_n_epoch || options_.val_check_interval.count,
             "val_check_interval: expected a count of batches where check_val_every_n_epoch is "
             "None, got the fraction {}",
             options_.val_check_interval.fraction);
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

void Trainer::check_idle(const TrainingModule& module) const {
  WEFT_CHECK(!module.trainer_ || module.trainer_ == this,
             "trainer: another Trainer is at work on the module; expected that it has ended");
}

void Trainer::seed_everything(uint64_t seed) {
  launch_alone();
  fabric_.seed_everything(seed);
}

// What fit() does before the first step.

void Trainer::fit_module(TrainingModule& module, const nn::ModelStructure& structure,
                         const BatchSource& train, const std::optional<BatchSource>& validation,
                         const std::string& checkpoint) {
  WEFT_CHECK(!module_, "trainer: fit() was called already; another fit needs another Trainer");
  check_idle(module);
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

/// `structure`: of module.model(). What another Fabric has set up, of another Trainer that is idle,
/// is taken over. What is wrong with the optimizers of a single model is said before that is cut.
void Trainer::set_up(TrainingModule& module, const nn::ModelStructure& structure,
                     const std::vector<optim::Optimizer*>& optimizers) {
  const NamedModels models = module.models();
  WEFT_CHECK(!models.empty(), "trainer: models() named none");
  for (const auto& [name, model] : models) {
    Fabric* const owner = Fabric::of(*model);
    if (owner == &fabric_) continue;
    if (owner) owner->release(*model);
    const nn::ModelStructure own = model == &module.model() ? structure : structure_of(*model);
    if (models.size() == 1) return fabric_.setup(*model, optimizers, own);
    fabric_.setup_model(*model, own);
  }
  fabric_.setup_optimizers(optimizers);
}

/// Of all models, those of several with their model's name before.
NamedTensors Trainer::parameters() const {
  const NamedModels models = module_->models();
  if (models.size() == 1) return models[0].second->named_parameters();
  NamedTensors all;
  for (const auto& [model, module] : models) {
    for (const auto& [name, tensor] : module->named_parameters()) {
      all.emplace_back(model + "." + name, tensor);
    }
  }
  return all;
}

/// What a step that the module takes itself leaves no place for.
void Trainer::check_steps_by_hand() const {
  if (module_->automatic_optimization) {
    WEFT_CHECK(parts_.size() == 1 && module_->models().size() <= 1,
               "trainer: {} optimizers of {} models: a module with several takes its steps itself, "
               "with automatic_optimization = false",
               parts_.size(), module_->models().size());
    return;
  }
  const auto refuse = [](bool is_asked_for, const char* what) {
    WEFT_CHECK(!is_asked_for,
               "trainer: {}: not where automatic_optimization is false, and training_step() takes "
               "its steps itself",
               what);
  };
  refuse(is_pipelined_, "strategy pipeline");
  refuse(options_.micro_batches, "micro_batches");
  refuse(options_.accumulate_grad_batches > 1, "accumulate_grad_batches");
  refuse(options_.gradient_clip_val > 0, "gradient_clip_val");
  refuse(options_.track_grad_norm, "track_grad_norm");
  refuse(options_.nonfinite != Nonfinite::kTake, "nonfinite");
}

void Trainer::begin(const nn::ModelStructure& structure, const BatchSource& train,
                    const std::optional<BatchSource>& validation, bool continues) {
  train_ = train.share(fabric_);
  train_batches_ = options_.limit_train_batches.of(train_->per_epoch(), "limit_train_batches");
  if (validation && !options_.limit_val_batches.is_zero()) {
    validation_ = validation->share(fabric_);
    is_of_one_loader_ = validation->is_of_one_loader_with(train);
    validation_batches_ =
        options_.limit_val_batches.of(validation_->per_epoch(), "limit_val_batches");
    const Limit& interval = options_.val_check_interval;
    const bool spans_epochs = !options_.check_val_every_n_epoch;
    validation_interval_ =
        spans_epochs ? *interval.count : interval.of(train_batches_, "val_check_interval");
    WEFT_CHECK(spans_epochs || !interval.count || *interval.count <= train_batches_,
               "val_check_interval: {} batches, but an epoch has {}; see check_val_every_n_epoch",
               *interval.count, train_batches_);
  }
  const Optimization optimization = module_->configure_optimizers();
  WEFT_CHECK(!optimization.parts.empty(), "trainer: configure_optimizers() returned none");
  std::vector<optim::Optimizer*> optimizers;
  for (const Optimization::Part& part : optimization.parts) {
    WEFT_CHECK(part.optimizer, "trainer: configure_optimizers() returned none");
    parts_.push_back({part.optimizer, {}});
    optimizers.push_back(part.optimizer.get());
  }
  const dist::StrategyKind& kind = dist::strategy_of(fabric_.options().strategy, fabric_.size());
  is_pipelined_ = contains(kind.settings, dist::Settings::kPipelineStages);
  check_steps_by_hand();
  set_up(*module_, structure, optimizers);
  if (options_.capture != Capture::kOff) {
    const std::string obstacle = why_not_captured();
    WEFT_CHECK(obstacle.empty() || options_.capture == Capture::kAuto,
               "capture: the step cannot be captured: {}", obstacle);
    captures_ = obstacle.empty();
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const optim::Schedule& schedule = optimization.parts[i].schedule;
    if (schedule) parts_[i].scheduler.emplace(*parts_[i].optimizer, schedule);
  }
  int64_t evaluating = 0;
  for (const auto& [name, model] : module_->models()) {
    for (const auto& [at, part] : model->named_modules()) evaluating += !part->is_training();
  }
  if (evaluating > 0) {
    say(fmt::format("{} module{} evaluation mode, and will stay so: train() changes that",
                    evaluating, evaluating == 1 ? " is in" : "s are in"));
  }
  if (!fabric_.is_main()) return;
  loggers_ = options_.loggers;
  if (!options_.directory.empty()) {
    const io::Path directory = options_.directory;
    io::make_directories(directory);
    lock_ = std::make_unique<io::DirectoryLock>(directory);
    WEFT_CHECK(continues || !std::filesystem::exists(directory / "metrics.jsonl"),
               "trainer: {} already holds a run; continue one of its checkpoints, or choose "
               "another directory",
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
    for (const auto& logger : loggers_) logger->resume(global_step_);
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

// The loop.

/// What is left of an epoch, or of what the fit takes of it.
void Trainer::run_epoch() {
  train_->seek({epoch_, batch_});
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
  while (true) {
    // Else a signal has cut a validation short, maybe one at the epoch's end, which a fit that goes
    // on without validations has behind it.
    if (!is_validation_due_ && batch_ < train_batches_) {
      const int64_t before = batch_;
      train_step();
      // To look at the loss is to wait for the device.
      const bool looks = fabric_.device().type == DeviceType::cpu ||
                         global_step_ % options_.log_every_n_steps == 0;
      if (is_shown) {
        progress.update(batch_, samples_ * fabric_.data_size(),
                        looks && loss_.defined() ? loss_.item() : NAN);
      }
      const std::optional<int64_t>& every = options_.check_val_every_n_epoch;
      const int64_t first = every ? 0 : epoch_ * train_batches_;  // of those the interval counts
      is_validation_due_ =
          validation_ &&
          (first + batch_) / validation_interval_ > (first + before) / validation_interval_ &&
          (!every || (epoch_ + 1) % *every == 0);
      if (batch_ == train_batches_) {
        progress.finish();
        publish_epoch();
      }
    }
    has_validated_ = false;
    if (is_validation_due_) {
      check_validation();
      if (is_of_one_loader_ && batch_ < train_batches_) train_->seek({epoch_, batch_});
    }
    has_ended_epoch_ = batch_ == train_batches_ && !is_validation_due_;
    if (has_ended_epoch_) end_epoch();
    agree();
    is_save_point_ = true;
    call(&Callback::on_save_point, *this, *module_);
    is_save_point_ = false;
    if (has_ended_epoch_ || is_stopping_) return;
  }
}

/// Samples of this rank's latest batch that count in means: those that no other rank has as well.
double Trainer::weight_of(const Batch& batch) const {
  if (!fabric_.strategy().counts()) return 0;
  const auto counted = std::ranges::find_if(batch, [](const Tensor& x) { return x.dim() > 0; });
  const int64_t rows = counted == batch.end() ? 1 : counted->size(0);
  return static_cast<double>(std::max<int64_t>(0, rows - fabric_.latest_batch().fillers));
}

Batch Trainer::next_of(RankBatches& batches, int64_t index, int64_t count) {
  std::optional<Batch> batch = batches.next();
  WEFT_CHECK(batch && !batch->empty(), "trainer: a loader of {} batches ended after {}", count,
             index);
  weight_ = weight_of(*batch);
  return std::move(*batch);
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
  has_epoch_means_ = true;
}

void Trainer::end_epoch() {
  call(&Callback::on_train_epoch_end, *this, *module_);
  for (const auto& logger : loggers_) logger->end_epoch(epoch_, global_step_, metrics_);
  ++epoch_;
  batch_ = 0;
}

// What ranks decide together.

/// Whether the fit ends here. Clocks differ, and a signal or a callback may reach one rank alone.
void Trainer::agree() {
  seconds_ = seconds_before_ + std::chrono::duration<double>(Clock::now() - start_).count();
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
  if (phase_ == Phase::kMeasuring) return measured_means_.add(name, value, weight_);
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

std::optional<double> Trainer::metric_so_far(const std::string& name, const char* asker) const {
  const bool is_known =
      std::ranges::find(metrics_, name, &NamedValues::value_type::first) != metrics_.end();
  const bool is_complete = has_epoch_means_ && (!validation_ || validated_);
  if (!is_known && !is_complete) return std::nullopt;
  return metric(name, asker);
}

bool Trainer::was_validated(const std::string& name) const {
  // A fit that has no validation may go on from one that had.
  return validation_ && validated_ && std::ranges::find(*validated_, name) != validated_->end();
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

optim::Optimizer& Trainer::optimizer(size_t index) const {
  WEFT_CHECK(!parts_.empty(), "trainer: there is no optimizer before fit()");
  WEFT_CHECK(index < parts_.size(),
             "trainer: configure_optimizers() gave {}, there is no number {}", parts_.size(),
             index);
  return *parts_[index].optimizer;
}

optim::Scheduler* Trainer::scheduler(size_t index) {
  optimizer(index);  // that there is one
  std::optional<optim::Scheduler>& scheduler = parts_[index].scheduler;
  return scheduler ? &*scheduler : nullptr;
}

}  // namespace weft::train
