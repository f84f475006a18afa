#include "train/image_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/finite.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/parallel.h"
#include "core/transfer.h"
#include "data/sets/open.h"
#include "dist/strategy/strategy_kind.h"
#include "io/sharded_safetensors.h"
#include "nn/meta.h"
#include "train/findings.h"
#include "train/fine_tuning.h"
#include "train/layer_watch.h"
#include "train/optimization.h"
#include "train/precision.h"
#include "train/pretrained/pretrained.h"
#include "train/ranks.h"
#include "train/run_directory.h"
#include "train/run_report.h"
#include "train/stop_signals.h"
#include "train/trained_model.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

data::Preprocess preprocess_for(const Config& config, const data::Dataset& dataset,
                                const Pretrained* weights) {
  // Photographs are larger than any model here reads.
  constexpr int kLargestDefault = 224;
  const data::ImageFormat format = dataset.format();
  const int own_size = std::min({format.height, format.width, kLargestDefault});
  data::Preprocess preprocess;
  preprocess.size = config.image_size > 0 ? static_cast<int>(config.image_size) : own_size;
  preprocess.fit = data::Fit::kShorterSide;  // of a square image all of it
  if (config.normalize) {
    const bool is_known = weights && weights->names;
    preprocess.normalization = is_known ? weights->preprocess.normalization : format.normalization;
  }
  return preprocess;
}

/// What a checkpoint holds is independent of the device.
NamedTensors on_cpu(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = to_device(tensor, Device{});
  return tensors;
}

/// What a run continues or begins with, if anything.
struct Start {
  const Checkpoint* checkpoint = nullptr;  // of the same run, read from `step`
  io::Path step = {};
  const Pretrained* weights = nullptr;
};

class Run {
 public:
  Run(const Config& config, const RunOptions& options, const Start& start = {});
  RunResult execute();

 private:
  void make_model(const Start& start);
  void open_loaders();
  void claim_output(const Start& start);
  std::unique_ptr<data::Loader> evaluation_loader(const data::DatasetPtr& dataset);
  void run_epoch();
  void train_batches(io::Progress& progress);
  StepFigures train_step();
  void compute_gradients(int64_t count, const std::function<dist::MicroBatch(int64_t)>& batch);
  void publish(const std::vector<Verdict>& verdicts);
  [[noreturn]] void fail_diverged(double loss, const dist::MicroBatch& suspect);
  std::optional<Score> measure(data::Loader& loader, const std::string& label,
                               std::vector<Verdict>* verdicts = nullptr);
  /// Several ranks stop together, when they have told each other.
  bool stops() const { return ranks_.size() > 1 ? told_to_stop_ : StopSignals::requested(); }
  void save();
  nlohmann::json state() const;
  void restore(const Checkpoint& checkpoint, const io::Path& step);
  void write_final_weights();

  const Config config_;
  const RunOptions options_;
  Ranks ranks_;
  RunReport report_;
  data::Splits splits_;
  TrainedModel trained_;
  std::vector<std::string> weight_notes_;  // what was done to make them fit
  std::unique_ptr<data::Loader> train_loader_, validation_loader_;
  int64_t batches_per_epoch_ = 0, steps_per_epoch_ = 0;  // in micro-batches of this rank; in steps
  std::optional<RunOptimizer> optimization_;
  std::optional<RunDirectory> directory_;
  io::Path output_, checkpoint_;

  RunState state_;                // its batch counts micro-batches of this rank
  double images_per_second_ = 0;  // of the last epoch trained here
  const SaveEvery save_every_ = parse_save_every(config_.save_every);
  Clock::time_point last_save_ = Clock::now();
  bool told_to_stop_ = false, told_to_save_ = false;
};

Run::Run(const Config& config, const RunOptions& options, const Start& start)
    : config_(config),
      options_(options),
      ranks_(config_, options.device, options.world),
      report_(config_, ranks_.is_main(), options.json) {
  check_supported(find_precision(config.precision), capabilities_of(options.device));
  if (options.threads > 0) set_num_threads(options.threads);
  splits_ = data::open_data(config.data, config.seed);
  make_model(start);
  open_loaders();
  WEFT_CHECK(config.deterministic_reduce == 0 || trained_.model->named_buffers().empty(),
             "deterministic-reduce: {} keeps running statistics, \"{}\" and others, of the batches "
             "that a rank has seen",
             config.model, trained_.model->named_buffers()[0].first);
  optimization_.emplace(config_, *trained_.model, ranks_, config.epochs * steps_per_epoch_);
  if (start.checkpoint) restore(*start.checkpoint, start.step);
  claim_output(start);
}

void Run::make_model(const Start& start) {
  const auto& [checkpoint, step, weights] = start;
  // What wraps the model copies rank 0's weights: the others need no memory for theirs.
  std::optional<nn::MetaScope> meta;
  if (!ranks_.is_main()) meta.emplace();
  if (checkpoint) {
    trained_ = restore_model(*checkpoint, step, ranks_.is_main() && !checkpoint->is_sharded);
    trained_.config = config_;  // the devices and the strategy it goes on with are recorded
    WEFT_CHECK(trained_.classes == splits_.train->class_names(),
               "resume: the classes of {} are not those of {}", config_.data, step.string());
  } else {
    trained_ = make_trained_model(config_, preprocess_for(config_, *splits_.train, weights),
                                  splits_.train->class_names());
    if (ranks_.is_main()) adapt_to(trained_, *splits_.train);
    if (weights && ranks_.is_main()) {
      weight_notes_ =
          load_pretrained(*trained_.model, *weights, parse_interpolation(config_.interpolation));
    }
  }
  meta.reset();
  freeze(*trained_.model, config_.freeze);
  trained_.move_to(ranks_.fabric().device());
}

void Run::open_loaders() {
  train_loader_ = std::make_unique<data::Loader>(
      splits_.train, ranks_.share({.shuffle = true,
                                   .drop_last = true,
                                   .seed = config_.seed,
                                   .workers = std::max(1, num_threads()),
                                   .device = trained_.device,
                                   .preprocess = trained_.preprocess,
                                   .augmentation = config_.augmentation},
                                  true));
  validation_loader_ = evaluation_loader(splits_.validation);
  const int64_t micro_batches = ranks_.micro_batches();
  batches_per_epoch_ = train_loader_->batches();
  if (config_.limit_batches > 0) {
    batches_per_epoch_ = std::min(batches_per_epoch_, config_.limit_batches * micro_batches);
  }
  steps_per_epoch_ =
      (batches_per_epoch_ / micro_batches + config_.accumulate - 1) / config_.accumulate;
}

std::unique_ptr<data::Loader> Run::evaluation_loader(const data::DatasetPtr& dataset) {
  return std::make_unique<data::Loader>(
      dataset,
      ranks_.share({.workers = std::max(1, num_threads()), .preprocess = trained_.preprocess},
                   false));
}

/// Last of all that can fail before the first step: a run that cannot start leaves nothing behind.
void Run::claim_output(const Start& start) {
  checkpoint_ = start.step;
  if (start.checkpoint) {
    directory_.emplace(RunDirectory::of(options_.resume, start.step, ranks_.is_main()));
  } else if (ranks_.is_main()) {
    directory_.emplace(RunDirectory::claim(
        options_.output, config_.recipe.empty() ? config_.model : config_.recipe));
  }
  if (directory_) output_ = directory_->path();
  if (!ranks_.is_main()) return;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : trained_.model->state_dict()) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  directory_->check_writable(bytes * (1 + optimization_->state_tensors()));
}

nlohmann::json Run::state() const {
  nlohmann::json state = describe(trained_);
  const Generator& g = generator();
  state["generator"] = {{"seed", g.seed}, {"stream", g.stream}, {"offset", g.offset}};
  state["images"] = {{"train", splits_.train->size()}, {"validation", splits_.validation->size()}};
  RunState of_all_ranks = state_;
  of_all_ranks.batch /= ranks_.micro_batches();
  state.update(to_json(of_all_ranks));
  state.update(optimization_->settings());
  return state;
}

void Run::restore(const Checkpoint& checkpoint, const io::Path& step) {
  const nlohmann::json& state = checkpoint.state;
  try {
    const nlohmann::json& images = state.at("images");
    WEFT_CHECK(images.at("train") == splits_.train->size() &&
                   images.at("validation") == splits_.validation->size(),
               "{} has changed: {} images to train and {} to validate, the run had {} and {}",
               config_.data, splits_.train->size(), splits_.validation->size(),
               images.at("train").dump(), images.at("validation").dump());
    if (checkpoint.is_sharded) {
      optimization_->load_sharded(step, state);
    } else {
      optimization_->load(checkpoint.optimizer, state);
    }
    const nlohmann::json& g = state.at("generator");
    generator() = {g.at("seed"), g.at("stream"), g.at("offset")};
    state_ = run_state_from_json(state);
    state_.batch *= ranks_.micro_batches();
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", step.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}{}", step.string(), error.what(),
              checkpoint.is_sharded ? say_what_is_before(step) : "");
  }
}

void Run::save() {
  constexpr int kKeptCheckpoints = 2;
  if (config_.state_dict_type == "sharded") {
    // Each rank writes its part while training goes on. When all have, it is a checkpoint.
    ranks_.fabric().wait_for_save();
    const auto draft = ranks_.is_main() ? std::make_shared<CheckpointDraft>(output_, state_.step)
                                        : std::shared_ptr<CheckpointDraft>();
    optimization_->save_sharded(draft ? draft->directory() : "", [this, draft, state = state()] {
      checkpoint_ = draft->commit(state, kKeptCheckpoints);
    });
    return;
  }
  // Every rank brings its part.
  const NamedTensors model = on_cpu(ranks_.strategy().model_state(*trained_.model));
  const NamedTensors optimizer = on_cpu(optimization_->tensors());
  if (ranks_.is_main()) {
    checkpoint_ = save_checkpoint(
        output_, {.step = state_.step, .model = model, .optimizer = optimizer, .state = state()},
        kKeptCheckpoints);
  }
  ranks_.fabric().barrier();
}

void Run::write_final_weights() {
  const NamedTensors model = on_cpu(ranks_.strategy().model_state(*trained_.model));
  if (!ranks_.is_main()) return;
  io::Metadata metadata = {{"format", "pt"}};  // PyTorch's readers want to know who wrote the file
  if (config_.layer_norm_eps > 0) {
    metadata["layer_norm_eps"] = nlohmann::json(config_.layer_norm_eps).dump();
  }
  io::write_safetensors(output_ / "model.safetensors", model, metadata);
}

/// Runs the backward passes of a step; with --detect-anomaly the first op to make a NaN is an
/// error.
void Run::compute_gradients(int64_t count, const std::function<dist::MicroBatch(int64_t)>& batch) {
  if (!config_.detect_anomaly) {
    ranks_.run(count, batch, optimization_->parameters());
    return;
  }
  const AnomalyMode checked;
  try {
    ranks_.run(count, batch, optimization_->parameters());
  } catch (const Error& error) {
    WEFT_FAIL("step {}: {}", state_.step + 1, error.what());
  }
}

/// Its figures are those of all ranks.
StepFigures Run::train_step() {
  const Clock::time_point start = Clock::now();
  allocator(trained_.device).reset_peak();
  const Precision& precision = find_precision(config_.precision);
  // The gradients of up to `accumulate` batches, each weighted by its share of the step's images.
  const int64_t count =
      std::min(config_.accumulate * ranks_.micro_batches(), batches_per_epoch_ - state_.batch);
  Ranks::Sums sums;
  dist::MicroBatch latest;
  std::optional<dist::MicroBatch> suspect;  // the first of a loss that is not finite
  const auto next_micro_batch = [&](int64_t) {
    const auto batch = std::make_shared<std::optional<data::Batch>>(train_loader_->next());
    WEFT_ASSERT(batch->has_value());
    ++state_.batch;
    ranks_.begin_micro_batch(state_.epoch, (*batch)->index);
    // A rank without a share of this batch goes along with an image that counts for nothing.
    const int size = trained_.preprocess.size;
    const bool is_empty = (*batch)->size() == 0;
    const Tensor images =
        ops::to(is_empty ? Tensor::zeros({1, 3, size, size}) : (*batch)->images, trained_.device);
    const auto loss = [&, batch, is_empty](const Tensor& output) {
      const data::Batch& b = **batch;
      const Tensor targets = ops::to(is_empty                  ? Tensor::zeros({1}, DType::i64)
                                     : b.soft_labels.defined() ? b.soft_labels
                                                               : b.labels,
                                     trained_.device);
      const Tensor logits = widened(output, precision);
      dist::Strategy& strategy = ranks_.strategy();
      const Tensor mean =
          strategy.cross_entropy(logits, targets, {.label_smoothing = config_.label_smoothing});
      if (!is_empty) {
        const double value = mean.item();
        if (!std::isfinite(value) && !suspect) suspect = latest;
        sums.loss.add(value * static_cast<double>(b.size()));
        sums.correct += count_equal(strategy.predicted(logits), b.labels);
        sums.images += b.size();
      }
      return optimization_->scaled(mean * ranks_.weight(b.size(), count));
    };
    return latest = dist::MicroBatch{ops::cast(images, precision.parameters), loss};
  };
  optimization_->begin_step();
  compute_gradients(count, next_micro_batch);
  sums.stops = StopSignals::requested();
  sums.saves = ranks_.is_main() && save_every_.seconds > 0 &&
               seconds_since(last_save_) >= save_every_.seconds;
  sums = ranks_.sum(sums);
  told_to_stop_ = sums.stops;
  told_to_save_ = sums.saves;
  const double loss = sums.loss.value() / static_cast<double>(sums.images);
  const bool is_finite = optimization_->finish_gradients() && std::isfinite(loss);
  if (!is_finite && (config_.nonfinite == "stop" ||
                     !first_nonfinite(trained_.model->named_parameters()).empty())) {
    fail_diverged(loss, suspect.value_or(latest));
  }
  if (std::isfinite(loss)) {
    state_.statistics.loss_sum += sums.loss.value();
    state_.statistics.correct += sums.correct;
    state_.statistics.images += sums.images;
  }
  std::vector<LayerFigures> layers;
  if (ranks_.is_main() && config_.watch > 0 && (state_.step + 1) % config_.watch == 0) {
    layers = watch_layers(*trained_.model, precision, ranks_.fabric().scaler().get_scale());
  }
  // A scale that is too large is halved by a step that is not taken.
  if (is_finite || optimization_->scales_loss()) {
    optimization_->step(state_.step);
  } else {
    optimization_->skip_step();
  }
  ++state_.step;  // also of a skipped one: the schedule follows the data
  return {.loss = loss,
          .images = sums.images,
          .seconds = seconds_since(start),
          .memory_bytes = allocator(trained_.device).stats().peak_live,
          .layers = std::move(layers)};
}

/// Ends the run by an error that says what first was not finite in a step, as far as it can be
/// told.
void Run::fail_diverged(double loss, const dist::MicroBatch& suspect) {
  const std::string what =
      std::isfinite(loss) ? "a gradient is not finite" : fmt::format("the loss is {}", loss);
  NamedTensors parameters = trained_.model->named_parameters(), gradients;
  std::string cause = first_nonfinite(parameters);
  if (!cause.empty()) {
    cause += " is not finite";
  } else {
    for (const auto& [name, parameter] : parameters) gradients.emplace_back(name, parameter.grad());
    // Backward comes to the last ones first.
    std::ranges::reverse(gradients);
    const std::string gradient = first_nonfinite(gradients);
    // Several ranks would have to repeat the step together.
    if (ranks_.size() == 1) {
      const AnomalyMode checked;
      const auto again = [&](int64_t) { return suspect; };
      try {
        ranks_.run(1, again, optimization_->parameters());
      } catch (const Error& error) {
        cause = error.what();
      }
    }
    if (!gradient.empty()) {
      cause += fmt::format("{}first in the gradient of {}", cause.empty() ? "" : "; ", gradient);
    }
  }
  WEFT_FAIL("training diverged at step {}: {}{}; try a lower --lr, or --nonfinite skip",
            state_.step + 1, what, cause.empty() ? "" : fmt::format(" ({})", cause));
}

/// Trains what is left of the epoch; returns early when a stop was requested.
void Run::train_batches(io::Progress& progress) {
  trained_.model->train();
  train_loader_->seek({state_.epoch, state_.batch});
  while (state_.batch < batches_per_epoch_ && !stops()) {
    StepFigures figures = train_step();
    const EpochStatistics& s = state_.statistics;
    progress.update(state_.batch, s.images, s.loss(), s.accuracy());
    figures.mean_images_per_second = progress.images_per_second();
    report_.step(state_, figures, *optimization_);
    // At the end of the epoch, and where it stops, it is saved anyway.
    const bool is_due =
        told_to_save_ || (save_every_.steps > 0 && state_.step % save_every_.steps == 0);
    if (is_due && state_.batch < batches_per_epoch_ && !stops()) save();
  }
  images_per_second_ = progress.images_per_second();
}

/// On the data of all ranks; nothing when a stop was requested on the way. `verdicts`: of this
/// rank's images.
std::optional<Score> Run::measure(data::Loader& loader, const std::string& label,
                                  std::vector<Verdict>* verdicts) {
  int64_t total = loader.batches();
  if (config_.limit_batches > 0) total = std::min(total, config_.limit_batches);
  io::Progress progress(label, total, {.out = report_.progress_stream()});
  const bool is_alone = ranks_.size() == 1;
  const auto forward = [&](const Tensor& x) {
    return ranks_.strategy().forward(*trained_.model, x);
  };
  const auto report = [&](int64_t done, const Score& so_far) {
    progress.update(done, so_far.examples, so_far.loss, so_far.accuracy);
    return !is_alone || !StopSignals::requested();
  };
  const auto each = [&](const data::Batch& batch, const Tensor& logits) {
    if (verdicts) append_verdicts(*verdicts, batch, logits);
  };
  const Score score = evaluate(
      trained_, loader,
      {.limit = config_.limit_batches, .progress = report, .forward = forward, .each = each});
  if (is_alone) return StopSignals::requested() ? std::nullopt : std::optional(score);
  Ranks::Sums sums;
  const auto n = static_cast<double>(score.examples);
  if (score.examples > 0) sums.loss.add(score.loss * n);
  sums.correct = std::llround(score.accuracy * n);
  sums.images = score.examples;
  sums.stops = StopSignals::requested();
  sums = ranks_.sum(sums);
  told_to_stop_ = sums.stops;
  if (told_to_stop_) return std::nullopt;
  const auto all = static_cast<double>(sums.images);
  return Score{sums.loss.value() / all, static_cast<double>(sums.correct) / all, sums.images};
}

/// Writes what the ranks together found in the last validation.
void Run::publish(const std::vector<Verdict>& verdicts) {
  const Tensor all = ranks_.fabric().gather_for_metrics(to_rows(verdicts));
  if (!ranks_.is_main()) return;
  Findings findings = make_findings(from_rows(all), *splits_.validation);
  findings.step = state_.step;
  report_.findings(findings, output_);
}

/// Trains and validates one epoch, or what is left of it, and saves.
void Run::run_epoch() {
  const Clock::time_point start = Clock::now();
  {
    io::Progress progress(
        fmt::format("epoch {}/{}", state_.epoch + 1, config_.epochs), batches_per_epoch_,
        {.out = report_.progress_stream(),
         .first_step = state_.batch,
         .first_image = state_.statistics.images,
         .steps_after = (config_.epochs - state_.epoch - 1) * batches_per_epoch_});
    train_batches(progress);
  }
  const bool is_last = state_.epoch + 1 == config_.epochs;
  std::vector<Verdict> verdicts;
  std::optional<Score> validation;
  if (!stops()) {
    validation = measure(*validation_loader_, "validation", is_last ? &verdicts : nullptr);
  }
  if (validation) {
    const EpochStatistics s = std::exchange(state_.statistics, {});
    state_.last_epoch = {s.loss(), s.accuracy(), *validation};
    report_.epoch(state_, images_per_second_, seconds_since(start));
    ++state_.epoch;  // the checkpoint's position is the next epoch's start
    state_.batch = 0;
  }
  save();
  if (is_last && validation) publish(verdicts);
}

RunResult Run::execute() {
  const Clock::time_point start = Clock::now();
  const StopSignals signals;
  report_.begin({trained_, splits_, ranks_, steps_per_epoch_, weight_notes_}, state_, output_);
  RunResult result;
  while (state_.epoch < config_.epochs && !stops()) run_epoch();
  ranks_.fabric().wait_for_save();
  result.interrupted = stops();
  if (!result.interrupted) {
    write_final_weights();
    if (splits_.test) {
      const std::optional<Score> test = measure(*evaluation_loader(splits_.test), "test");
      result.interrupted = !test;
      if (test) {
        result.test_accuracy = test->accuracy;
        result.test_images = test->examples;
      }
    }
  }
  result.validation_accuracy = state_.last_epoch.validation.accuracy;
  result.checkpoint = checkpoint_.string();
  if (ranks_.is_main()) result.output = output_.string();
  result.seconds = seconds_since(start);
  if (result.interrupted) {
    report_.interrupted(state_, output_, checkpoint_);
  } else {
    report_.done(state_, result, images_per_second_, output_);
  }
  return result;
}

}  // namespace

RunResult train(const Config& config, const RunOptions& options) {
  validate(config);
  if (config.weights.empty()) return Run(config, options).execute();
  std::optional<Pretrained> weights = read_pretrained(config.weights);
  Config adapted = config;
  if (weights->names) {
    // A vision transformer goes on at the size of images it knows, with the eps it was trained at.
    if (config.image_size == 0) adapted.image_size = weights->preprocess.size;
    if (config.layer_norm_eps == 0) adapted.layer_norm_eps = weights->layer_norm_eps;
  }
  Run run(adapted, options, {.weights = &*weights});
  weights.reset();  // the model has its own copy
  return run.execute();
}

Config resumed_config(const RunOptions& options) {
  const io::Path step = find_checkpoint(options.resume);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kState);
  WEFT_CHECK(checkpoint.state.contains("config"), "resume: {} holds no configuration",
             step.string());
  Config config = config_from_json(checkpoint.state.at("config"));
  const int64_t batch = config.batch_size * sharing_of(config).data_devices();
  dist::StrategyOptions& strategy = config.strategy;
  const dist::StrategyOptions& other = options.strategy;
  bool changes = other.tensor_parallel > 0 || other.pipeline_stages > 0;
  if (options.devices > 0)
    changes |= std::exchange(config.devices, options.devices) != options.devices;
  const auto devices = static_cast<int>(config.devices);
  if (!other.name.empty() && other.name != dist::strategy_of(strategy, devices).name) {
    changes = true;
    // Without the settings of the strategy before.
    strategy = {.name = other.name, .schedule = strategy.schedule};
  }
  if (other.tensor_parallel > 0) strategy.tensor_parallel = other.tensor_parallel;
  if (other.pipeline_stages > 0) strategy.pipeline_stages = other.pipeline_stages;
  if (changes && config.global_batch_size == 0) config.global_batch_size = batch;
  validate(config);
  return config;
}

RunResult resume(const RunOptions& options) {
  const Config config = resumed_config(options);
  const io::Path step = find_checkpoint(options.resume);
  // Of a sharded one each rank reads its part when it has a model.
  const bool is_sharded = io::is_sharded_state(step);
  const Checkpoint checkpoint =
      load_checkpoint(step, is_sharded ? CheckpointParts::kState : CheckpointParts::kAll);
  return Run(config, options, {.checkpoint = &checkpoint, .step = step}).execute();
}

}  // namespace weft::train
