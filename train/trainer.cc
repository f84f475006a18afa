#include "train/trainer.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/parallel.h"
#include "core/transfer.h"
#include "data/open.h"
#include "models/structure.h"
#include "nn/meta.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "train/event_log.h"
#include "train/fine_tuning.h"
#include "train/precision.h"
#include "train/progress.h"
#include "train/ranks.h"
#include "train/tensorboard.h"
#include "train/trained_model.h"
#include "train/weights/pretrained.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

/// What tells Fp8Scaling's tensors from the optimizer's, which they lie beside in a checkpoint.
constexpr const char* kFp8Key = ".fp8_";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

volatile sig_atomic_t stop_requested = 0;

/// Turns the first Ctrl-C (or SIGTERM) into a request; the second ends the program as usual.
class StopSignals {
 public:
  StopSignals() {
    stop_requested = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_requested = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, &previous_[0]);
    sigaction(SIGTERM, &action, &previous_[1]);
    // What the launcher sends to the ranks on Ctrl-C.
    sigaction(SIGUSR1, &action, &previous_[2]);
  }
  ~StopSignals() {
    sigaction(SIGINT, &previous_[0], nullptr);
    sigaction(SIGTERM, &previous_[1], nullptr);
    sigaction(SIGUSR1, &previous_[2], nullptr);
  }

 private:
  struct sigaction previous_[3];
};

/// Means over the part of an epoch that is done.
struct EpochStatistics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t images = 0;

  double loss() const { return images ? loss_sum / static_cast<double>(images) : NAN; }
  double accuracy() const {
    return images ? static_cast<double>(correct) / static_cast<double>(images) : NAN;
  }
};

int64_t count_elements(const NamedTensors& tensors) {
  int64_t count = 0;
  for (const auto& [name, tensor] : tensors) count += tensor.numel();
  return count;
}

/// What an epoch came to; NaN before the first.
struct EpochResult {
  double loss = NAN;
  double train_accuracy = NAN;
  Score validation = {NAN, NAN, 0};
};

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

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, const nn::Module& model,
                                                 dist::Strategy& strategy) {
  optim::ParameterGroups groups = optim::without_decay_of_vectors(
      trained_parameters(model), {"pos_embedding", "class_token", "positional_emb"});
  if (config.layer_decay < 1) groups = with_layer_decay(groups, config.layer_decay, model);
  groups = strategy.groups(groups);
  if (config.optimizer == "sgd") {
    return std::make_unique<optim::SGD>(groups,
                                        optim::SgdOptions{.lr = config.lr,
                                                          .momentum = config.momentum,
                                                          .weight_decay = config.weight_decay,
                                                          .nesterov = config.momentum > 0});
  }
  if (config.optimizer == "adam") {
    return std::make_unique<optim::Adam>(
        groups, optim::AdamOptions{.lr = config.lr, .weight_decay = config.weight_decay});
  }
  return std::make_unique<optim::AdamW>(
      groups, optim::AdamWOptions{.lr = config.lr, .weight_decay = config.weight_decay});
}

/// Disabled where no loss is scaled; a fixed scale is put back after each step.
optim::GradScaler make_scaler(const Config& config) {
  optim::GradScalerOptions options;
  options.enabled = find_precision(config.precision).scales_loss() && config.loss_scale != "none";
  if (options.enabled && config.loss_scale != "dynamic") {
    options.init_scale = fixed_loss_scale(config);
    return optim::GradScaler(options);
  }
  options.init_scale = config.initial_loss_scale;
  options.growth_interval = config.loss_scale_window;
  options.hysteresis = config.loss_scale_hysteresis;
  options.min_scale = config.min_loss_scale;
  return optim::GradScaler(options);
}

Fp8Options fp8_options(const Config& config) {
  return {.scaling = config.fp8_scaling == "delayed" ? Fp8Options::Scaling::delayed
                                                     : Fp8Options::Scaling::current};
}

/// The factor on config.lr at each step.
optim::Schedule make_schedule(const Config& config, int64_t steps) {
  if (config.schedule == "one-cycle") {
    return optim::one_cycle(steps, {.warmup_fraction = config.warmup});
  }
  const auto rising = std::min(
      steps - 1, static_cast<int64_t>(std::lround(config.warmup * static_cast<double>(steps))));
  const optim::Schedule rest =
      config.schedule == "cosine" ? optim::cosine(steps - rising) : optim::constant();
  if (rising == 0) return rest;
  return optim::sequential({optim::linear_warmup(rising, 1.0 / static_cast<double>(rising)), rest},
                           {rising});
}

/// Creates and returns runs/NAME-N with the first N that is free; no other run gets the same.
Path make_run_directory(const std::string& name) {
  make_directories("runs");
  for (int n = 1;; ++n) {
    const Path path = Path("runs") / fmt::format("{}-{}", name, n);
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) return path;
    WEFT_CHECK(!error, "cannot create the directory {}: {}", path.string(), error.message());
  }
}

/// A full or read-only disk is better found before the first epoch than after it.
void check_writable(const Path& output, int64_t checkpoint_bytes) {
  FileWriter(output / ".writable");  // its destructor removes it
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(output, error);
  if (error || space.capacity == 0) return;  // some file systems do not say
  WEFT_CHECK(space.available >= static_cast<uintmax_t>(checkpoint_bytes),
             "cannot save checkpoints in {}: {}: one takes {} bytes, {} are free", output.string(),
             std::strerror(ENOSPC), checkpoint_bytes, space.available);
}

/// The run's directory that a checkpoint found under `path` belongs to.
Path run_directory(const Path& path, const Path& step) {
  return std::filesystem::equivalent(path, step) ? std::filesystem::canonical(step).parent_path()
                                                 : path;
}

/// Where progress is drawn: nowhere but on rank 0.
std::FILE* progress_stream(bool is_main) {
  static std::FILE* const nowhere = std::fopen("/dev/null", "w");
  return is_main || !nowhere ? stderr : nowhere;
}

int loader_workers() { return std::max(1, num_threads()); }

/// What a run continues or begins with, if anything.
struct Start {
  const Checkpoint* checkpoint = nullptr;  // of the same run, read from `step`
  Path step = {};
  const Pretrained* weights = nullptr;
};

class Run {
 public:
  Run(const Config& config, const RunOptions& options, const Start& start = {});
  RunResult execute();

 private:
  void run_epoch();
  void train_batches(Progress& progress);
  void train_step();
  double lr() const { return config_.lr * schedule_(step_); }
  /// Several ranks stop together, when they have told each other.
  bool stops() const { return ranks_.size() > 1 ? told_to_stop_ : stop_requested != 0; }
  std::optional<Score> validate(data::Loader& loader, const std::string& label);
  void claim_output();
  void save();
  Metadata model_metadata() const;
  nlohmann::json state() const;
  void restore(const Checkpoint& checkpoint, const Path& step);
  void print_heading();
  std::string describe_arithmetic() const;
  void report_epoch(double seconds);
  void report_interrupted() const;
  void report_done(const RunResult& result) const;

  const Config config_;
  const RunOptions options_;
  const Precision& precision_;
  const kernels::Accumulation accumulation_;
  Ranks ranks_;
  data::Splits splits_;
  TrainedModel trained_;
  std::unique_ptr<data::Loader> train_loader_, validation_loader_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_;
  Fp8Scaling fp8_;
  optim::Schedule schedule_;
  int64_t batches_per_epoch_ = 0, steps_per_epoch_ = 0;
  Path output_, checkpoint_;
  const EventLog log_;
  std::optional<Table> table_;
  std::optional<TensorBoardWriter> curves_;
  std::vector<std::string> weight_notes_;  // what was done to make them fit

  int64_t step_ = 0;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;           // of the epoch: batches done
  EpochStatistics statistics_;  // of the epoch
  double last_loss_ = NAN;      // of the last step
  double last_scale_ = 1;       // of its loss
  bool last_was_skipped_ = false;
  double images_per_second_ = 0;  // of the last epoch trained here
  EpochResult last_epoch_;
  bool told_to_stop_ = false;
};

Run::Run(const Config& config, const RunOptions& options, const Start& start)
    : config_(config),
      options_(options),
      precision_(find_precision(config.precision)),
      accumulation_(kernels::parse_accumulation(config.matmul_numerics)),
      ranks_(config_, options.world),
      scaler_(make_scaler(config)),
      fp8_(fp8_options(config)),
      log_(options.json && ranks_.is_main() ? stdout : nullptr) {
  const auto& [checkpoint, step, weights] = start;
  check_supported(precision_, capabilities_of(options.device));
  if (options.threads > 0) set_num_threads(options.threads);
  splits_ = data::open_data(config.data, config.seed);
  // What wraps the model copies rank 0's weights: the others need no memory for theirs.
  std::optional<nn::MetaScope> meta;
  if (!ranks_.is_main()) meta.emplace();
  if (checkpoint) {
    trained_ = restore_model(*checkpoint, step, ranks_.is_main());
    WEFT_CHECK(trained_.classes == splits_.train->class_names(),
               "resume: the classes of {} are not those of {}", config.data, step.string());
  } else {
    trained_ = make_trained_model(config, preprocess_for(config, *splits_.train, weights),
                                  splits_.train->class_names());
    if (weights && ranks_.is_main()) {
      weight_notes_ =
          load_pretrained(*trained_.model, *weights, parse_interpolation(config.interpolation));
    }
  }
  meta.reset();
  freeze(*trained_.model, config.freeze);
  trained_.move_to(options.device);
  train_loader_ = std::make_unique<data::Loader>(splits_.train,
                                                 ranks_.share({.shuffle = true,
                                                               .drop_last = true,
                                                               .seed = config.seed,
                                                               .workers = loader_workers(),
                                                               .preprocess = trained_.preprocess,
                                                               .augmentation = config.augmentation},
                                                              true));
  validation_loader_ = std::make_unique<data::Loader>(
      splits_.validation,
      ranks_.share({.workers = loader_workers(), .preprocess = trained_.preprocess}, false));
  // In pieces of this rank, of which a batch has `rounds`.
  const int64_t rounds = ranks_.rounds();
  batches_per_epoch_ = train_loader_->batches();
  if (config.limit_batches > 0)
    batches_per_epoch_ = std::min(batches_per_epoch_, config.limit_batches * rounds);
  steps_per_epoch_ = (batches_per_epoch_ / rounds + config.accumulate - 1) / config.accumulate;
  WEFT_CHECK(config.deterministic_reduce == 0 || trained_.model->named_buffers().empty(),
             "deterministic-reduce: {} keeps running statistics, \"{}\" and others, of the batches "
             "that a rank has seen",
             config.model, trained_.model->named_buffers()[0].first);
  ranks_.strategy().wrap(*trained_.model, models::structure_of(*trained_.model, [&] {
    return make_trained_model(config, trained_.preprocess, trained_.classes).model;
  }));
  optimizer_ = make_optimizer(config, *trained_.model, ranks_.strategy());
  schedule_ = make_schedule(config, config.epochs * steps_per_epoch_);
  if (checkpoint) {
    restore(*checkpoint, step);
    checkpoint_ = step;
    output_ = run_directory(options.resume, step);
  }
  claim_output();
}

/// Last of all that can fail before the first step: a run that cannot start leaves nothing behind.
void Run::claim_output() {
  if (!ranks_.is_main()) return;
  if (output_.empty() && options_.output.empty()) {
    output_ = make_run_directory(config_.recipe.empty() ? config_.model : config_.recipe);
  } else if (output_.empty()) {
    output_ = options_.output;
    WEFT_CHECK(!std::filesystem::exists(output_ / "latest"),
               "{} already holds a run; continue it with --resume {} or choose another --output",
               output_.string(), output_.string());
    make_directories(output_);
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : trained_.model->state_dict()) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  // Each optimizer keeps as much again: Adam its two moments, SGD its momentum.
  check_writable(output_, bytes * (config_.optimizer == "sgd" ? 2 : 3));
}

/// Of model.safetensors. PyTorch's readers want to know who wrote the file.
Metadata Run::model_metadata() const {
  Metadata metadata = {{"format", "pt"}};
  if (config_.layer_norm_eps > 0) {
    metadata["layer_norm_eps"] = nlohmann::json(config_.layer_norm_eps).dump();
  }
  return metadata;
}

nlohmann::json Run::state() const {
  nlohmann::json state = describe(trained_);
  const Generator& g = generator();
  state["generator"] = {{"seed", g.seed}, {"stream", g.stream}, {"offset", g.offset}};
  state["images"] = {{"train", splits_.train->size()}, {"validation", splits_.validation->size()}};
  state["progress"] = {{"step", step_},
                       {"epoch", epoch_},
                       {"batch", batch_ / ranks_.rounds()},
                       {"loss_sum", statistics_.loss_sum},
                       {"correct", statistics_.correct},
                       {"images", statistics_.images}};
  state["last_epoch"] = {{"loss", last_epoch_.loss},
                         {"train_accuracy", last_epoch_.train_accuracy},
                         {"val_loss", last_epoch_.validation.loss},
                         {"val_accuracy", last_epoch_.validation.accuracy}};
  state["optimizer"] = optimizer_->state_dict().groups;
  state["loss_scaler"] = scaler_.state_dict();
  return state;
}

void Run::restore(const Checkpoint& checkpoint, const Path& step) {
  const nlohmann::json& state = checkpoint.state;
  try {
    const nlohmann::json& images = state.at("images");
    WEFT_CHECK(images.at("train") == splits_.train->size() &&
                   images.at("validation") == splits_.validation->size(),
               "{} has changed: {} images to train and {} to validate, the run had {} and {}",
               config_.data, splits_.train->size(), splits_.validation->size(),
               images.at("train").dump(), images.at("validation").dump());
    NamedTensors optimizer, fp8;
    for (const auto& [name, tensor] : checkpoint.optimizer) {
      const bool is_fp8 = name.find(kFp8Key) != std::string::npos;
      (is_fp8 ? fp8 : optimizer).emplace_back(name, tensor);
    }
    ranks_.strategy().load_optimizer_state(*optimizer_, {optimizer, state.at("optimizer")});
    fp8_.load_state_dict(fp8, trained_.model->named_parameters());
    scaler_.load_state_dict(state.at("loss_scaler"));
    const nlohmann::json& g = state.at("generator");
    generator() = {g.at("seed"), g.at("stream"), g.at("offset")};
    const nlohmann::json& p = state.at("progress");
    p.at("step").get_to(step_);
    p.at("epoch").get_to(epoch_);
    p.at("batch").get_to(batch_);
    batch_ *= ranks_.rounds();
    p.at("loss_sum").get_to(statistics_.loss_sum);
    p.at("correct").get_to(statistics_.correct);
    p.at("images").get_to(statistics_.images);
    if (epoch_ > 0) {
      const nlohmann::json& last = state.at("last_epoch");
      last.at("loss").get_to(last_epoch_.loss);
      last.at("train_accuracy").get_to(last_epoch_.train_accuracy);
      last.at("val_loss").get_to(last_epoch_.validation.loss);
      last.at("val_accuracy").get_to(last_epoch_.validation.accuracy);
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", step.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", step.string(), error.what());
  }
}

/// What a checkpoint holds is independent of the device.
NamedTensors on_cpu(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = to_device(tensor, Device{});
  return tensors;
}

void Run::save() {
  constexpr int kKeptCheckpoints = 2;
  // Every rank brings its part.
  const NamedTensors model = on_cpu(ranks_.strategy().model_state(*trained_.model));
  NamedTensors optimizer = on_cpu(ranks_.strategy().optimizer_state(*optimizer_).tensors);
  for (auto& entry : fp8_.state_dict(trained_.model->named_parameters())) {
    optimizer.push_back(std::move(entry));
  }
  if (ranks_.is_main()) {
    checkpoint_ = save_checkpoint(
        output_, {.step = step_, .model = model, .optimizer = optimizer, .state = state()},
        kKeptCheckpoints);
  }
  ranks_.barrier();
}

void Run::train_step() {
  // The gradients of up to `accumulate` batches, each weighted by its share of the step's images.
  const int64_t parts = std::min(config_.accumulate * ranks_.rounds(), batches_per_epoch_ - batch_);
  optimizer_->zero_grad();
  Ranks::Sums sums;
  const auto next_piece = [&](int64_t) {
    const auto batch = std::make_shared<std::optional<data::Batch>>(train_loader_->next());
    WEFT_ASSERT(batch->has_value());
    ++batch_;
    ranks_.begin_piece(epoch_, (*batch)->index);
    // A rank without a share of this batch goes along with an image that counts for nothing.
    const int size = trained_.preprocess.size;
    const bool is_empty = (*batch)->size() == 0;
    const Tensor images =
        ops::to(is_empty ? Tensor::zeros({1, 3, size, size}) : (*batch)->images, options_.device);
    const auto loss = [&, batch, is_empty](const Tensor& output) {
      const data::Batch& b = **batch;
      const Tensor targets = ops::to(is_empty                  ? Tensor::zeros({1}, DType::i64)
                                     : b.soft_labels.defined() ? b.soft_labels
                                                               : b.labels,
                                     options_.device);
      const Tensor logits = widened(output, precision_);
      const Tensor mean =
          ops::cross_entropy(logits, targets, {.label_smoothing = config_.label_smoothing});
      if (!is_empty) {
        sums.loss.add(mean.item() * static_cast<double>(b.size()));
        sums.correct += count_correct(logits, b.labels);
        sums.images += b.size();
      }
      return scaler_.scale(mean * ranks_.weight(b.size(), parts));
    };
    return dist::MicroBatch{ops::cast(images, precision_.parameters), loss};
  };
  scaler_.scale(Tensor::scalar(0));  // also where a pipeline's stage has no loss of its own
  {
    // One scope for all parts: each weight is cast once.
    const PrecisionScope scope = enter_precision(config_, fp8_);
    ranks_.run(*trained_.model, parts, next_piece, optimizer_->parameters());
  }
  sums.stops = stop_requested;
  sums = ranks_.sum(sums);
  told_to_stop_ = sums.stops;
  last_loss_ = sums.loss.value() / static_cast<double>(sums.images);
  WEFT_CHECK(std::isfinite(last_loss_),
             "training diverged: the loss is {} at step {}; try a lower --lr", last_loss_,
             step_ + 1);
  statistics_.loss_sum += sums.loss.value();
  statistics_.correct += sums.correct;
  statistics_.images += sums.images;
  double norm = 0, clip = 1;
  if (scaler_.is_enabled()) {
    norm = scaler_.unscale(*optimizer_);
    scaler_.set_found_inf(*optimizer_, ranks_.any(scaler_.found_inf(*optimizer_) != 0));
  }
  if (config_.clip_norm > 0) {
    const bool is_known = scaler_.is_enabled() && !ranks_.is_active();
    if (!is_known) norm = ranks_.grad_norm(optimizer_->parameters());
    clip = optim::clip_coefficient(norm, config_.clip_norm);
  }
  optimizer_->set_lr(lr());
  last_scale_ = scaler_.get_scale();
  last_was_skipped_ = !scaler_.step(*optimizer_, clip);
  ranks_.strategy().after_step();
  if (config_.loss_scale == "dynamic") {
    scaler_.update();
  } else {
    scaler_.update(scaler_.get_scale());
  }
  if (precision_.is_fp8() && config_.fp8_scaling == "delayed") {
    const NamedTensors parameters = trained_.model->named_parameters();
    const Tensor amax = fp8_.step_amax(parameters);
    ranks_.max(amax);
    fp8_.set_step_amax(amax, parameters);
  }
  fp8_.update();
  ++step_;  // also of a skipped one: the schedule follows the data
}

/// Trains what is left of the epoch; returns early when a stop was requested.
void Run::train_batches(Progress& progress) {
  trained_.model->train();
  train_loader_->seek({epoch_, batch_});
  while (batch_ < batches_per_epoch_ && !stops()) {
    train_step();
    progress.update(batch_, statistics_.images, statistics_.loss(), statistics_.accuracy());
    nlohmann::ordered_json event = {{"epoch", epoch_ + 1},
                                    {"step", step_},
                                    {"loss", last_loss_},
                                    {"train_accuracy", statistics_.accuracy()},
                                    {"val_accuracy", last_epoch_.validation.accuracy},
                                    {"lr", optimizer_->lr()},
                                    {"images_per_second", progress.images_per_second()}};
    if (scaler_.is_enabled()) {
      event["loss_scale"] = last_scale_;
      event["skipped"] = last_was_skipped_;
    }
    log_.write("step", event);
    if (curves_) {
      curves_->scalar("loss/step", step_, last_loss_);
      curves_->scalar("lr", step_, optimizer_->lr());
      if (scaler_.is_enabled()) curves_->scalar("loss_scale", step_, last_scale_);
    }
  }
  images_per_second_ = progress.images_per_second();
}

/// Nothing when a stop was requested on the way.
std::optional<Score> Run::validate(data::Loader& loader, const std::string& label) {
  int64_t total = loader.batches();
  if (config_.limit_batches > 0) total = std::min(total, config_.limit_batches);
  Progress progress(label, total, {.out = progress_stream(ranks_.is_main())});
  const bool is_alone = ranks_.size() == 1;
  const auto forward = [&](const Tensor& x) {
    return ranks_.strategy().forward(*trained_.model, x);
  };
  const auto report = [&](int64_t done, const Score& so_far) {
    progress.update(done, so_far.examples, so_far.loss, so_far.accuracy);
    return !is_alone || !stop_requested;
  };
  const Score score = evaluate(trained_, loader, config_.limit_batches, report, forward);
  if (is_alone) return stop_requested ? std::nullopt : std::optional(score);
  Ranks::Sums sums;
  const auto n = static_cast<double>(score.examples);
  if (score.examples > 0) sums.loss.add(score.loss * n);
  sums.correct = std::llround(score.accuracy * n);
  sums.images = score.examples;
  sums.stops = stop_requested;
  sums = ranks_.sum(sums);
  told_to_stop_ = sums.stops;
  if (told_to_stop_) return std::nullopt;
  const auto all = static_cast<double>(sums.images);
  return Score{sums.loss.value() / all, static_cast<double>(sums.correct) / all, sums.images};
}

/// Trains and validates one epoch, or what is left of it, and saves.
void Run::run_epoch() {
  const Clock::time_point start = Clock::now();
  {
    Progress progress(fmt::format("epoch {}/{}", epoch_ + 1, config_.epochs), batches_per_epoch_,
                      {.out = progress_stream(ranks_.is_main()),
                       .first_step = batch_,
                       .first_image = statistics_.images,
                       .steps_after = (config_.epochs - epoch_ - 1) * batches_per_epoch_});
    train_batches(progress);
  }
  std::optional<Score> validation;
  if (!stops()) validation = validate(*validation_loader_, "validation");
  if (validation) {
    last_epoch_ = {statistics_.loss(), statistics_.accuracy(), *validation};
    report_epoch(seconds_since(start));
    ++epoch_;  // the checkpoint's position is the next epoch's start
    batch_ = 0;
    statistics_ = {};
  }
  save();
}

void Run::report_epoch(double seconds) {
  const EpochResult& e = last_epoch_;
  if (table_) {
    table_->row({fmt::format("{}/{}", epoch_ + 1, config_.epochs), fmt::format("{:.4f}", e.loss),
                 fmt::format("{:.1f}%", 100 * e.train_accuracy),
                 fmt::format("{:.4f}", e.validation.loss),
                 fmt::format("{:.1f}%", 100 * e.validation.accuracy),
                 fmt::format("{:.0f}", images_per_second_), format_duration(seconds)});
  }
  log_.write("epoch", {{"epoch", epoch_ + 1},
                       {"step", step_},
                       {"loss", e.loss},
                       {"train_accuracy", e.train_accuracy},
                       {"val_loss", e.validation.loss},
                       {"val_accuracy", e.validation.accuracy},
                       {"images_per_second", images_per_second_},
                       {"seconds", seconds}});
  if (!curves_) return;
  curves_->scalar("loss/train", step_, e.loss);
  curves_->scalar("loss/validation", step_, e.validation.loss);
  curves_->scalar("accuracy/train", step_, e.train_accuracy);
  curves_->scalar("accuracy/validation", step_, e.validation.accuracy);
  curves_->scalar("images_per_second", step_, images_per_second_);
  curves_->flush();
}

/// "bf16", "fp16 as on h100", ...
std::string Run::describe_arithmetic() const {
  if (accumulation_ == kernels::Accumulation::ieee) return config_.precision;
  return fmt::format("{} as on {}", config_.precision, config_.matmul_numerics);
}

void Run::print_heading() {
  const auto count = [](const data::DatasetPtr& d) { return d ? d->size() : 0; };
  const std::string place = options_.device.type == DeviceType::cpu
                                ? fmt::format("{} threads", num_threads())
                                : to_string(options_.device);
  fmt::print("{}: {} parameters, {} classes, {} x {} pixels, {}, {}\n", config_.model,
             trained_.model->num_parameters(), trained_.classes.size(), trained_.preprocess.size,
             trained_.preprocess.size, describe_arithmetic(), place);
  if (!config_.weights.empty() && step_ == 0) {
    fmt::print("weights: {}\n", config_.weights);
    for (const std::string& note : weight_notes_) fmt::print("weights: {}\n", note);
  }
  if (!config_.freeze.empty()) {
    fmt::print("frozen: {} parameters\n", trained_.model->num_parameters() -
                                              count_elements(trained_parameters(*trained_.model)));
  }
  fmt::print("{}: {} images to train, {} to validate, {} to test\n", config_.data,
             count(splits_.train), count(splits_.validation), count(splits_.test));
  if (ranks_.is_active()) {
    fmt::print("{}; batch {} of {}{}\n",
               ranks_.strategy().describe(trained_.model->num_parameters()), ranks_.global_batch(),
               config_.devices,
               config_.deterministic_reduce > 0
                   ? fmt::format(", in {} pieces of fixed order", config_.deterministic_reduce)
                   : "");
  }
  fmt::print("{}: {} epochs of {} steps, batch {}{}, {} with learning rate {} ({})\n\n",
             config_.recipe.empty() ? "settings" : config_.recipe, config_.epochs, steps_per_epoch_,
             config_.batch_size,
             config_.accumulate > 1 ? fmt::format(" x {}", config_.accumulate) : "",
             config_.optimizer, config_.lr, config_.schedule);
  std::fflush(stdout);
  table_.emplace(std::vector<Table::Column>{{"epoch", 7},
                                            {"loss", 8},
                                            {"train", 7},
                                            {"val loss", 9},
                                            {"val", 7},
                                            {"images/s", 9},
                                            {"time", 8}});
}

void Run::report_interrupted() const {
  if (!ranks_.is_main()) return;
  fmt::print(stderr, "stopped after step {}; continue with: ./weft train --resume {}\n", step_,
             output_.string());
  log_.write("interrupted", {{"step", step_}, {"checkpoint", checkpoint_.string()}});
}

void Run::report_done(const RunResult& result) const {
  if (!ranks_.is_main()) return;
  nlohmann::ordered_json done = {{"step", step_},
                                 {"loss", last_epoch_.loss},
                                 {"train_accuracy", last_epoch_.train_accuracy},
                                 {"val_accuracy", result.validation_accuracy},
                                 {"test_accuracy", nullptr},
                                 {"images_per_second", images_per_second_},
                                 {"seconds", result.seconds},
                                 {"checkpoint", result.checkpoint}};
  if (result.test_accuracy) done["test_accuracy"] = *result.test_accuracy;
  log_.write("done", done);
  if (options_.json) return;
  if (result.test_accuracy) {
    fmt::print("\ntest accuracy {:.2f}% on {} images never seen before, after {}\n",
               100 * *result.test_accuracy, result.test_images, format_duration(result.seconds));
  } else {
    fmt::print("\nvalidation accuracy {:.2f}% (the data has no test split), after {}\n",
               100 * result.validation_accuracy, format_duration(result.seconds));
  }
  fmt::print("checkpoint {}\nweights    {}\n", result.checkpoint,
             (output_ / "model.safetensors").string());
}

RunResult Run::execute() {
  const Clock::time_point start = Clock::now();
  const StopSignals signals;
  if (!options_.json && ranks_.is_main()) print_heading();
  if (ranks_.is_main()) curves_.emplace(output_, step_ + 1);
  if (!config_.weights.empty() && step_ == 0) {
    log_.write("weights", {{"file", config_.weights}, {"notes", weight_notes_}});
  }
  RunResult result;
  while (epoch_ < config_.epochs && !stops()) run_epoch();
  result.interrupted = stops();
  if (!result.interrupted) {
    const NamedTensors model = ranks_.strategy().model_state(*trained_.model);
    if (ranks_.is_main()) {
      write_safetensors(output_ / "model.safetensors", model, model_metadata());
    }
    if (splits_.test) {
      data::Loader loader(
          splits_.test,
          ranks_.share({.workers = loader_workers(), .preprocess = trained_.preprocess}, false));
      const std::optional<Score> test = validate(loader, "test");
      result.interrupted = !test;
      if (test) {
        result.test_accuracy = test->accuracy;
        result.test_images = test->examples;
      }
    }
  }
  result.validation_accuracy = last_epoch_.validation.accuracy;
  result.checkpoint = checkpoint_.string();
  result.seconds = seconds_since(start);
  if (result.interrupted) {
    report_interrupted();
  } else {
    report_done(result);
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
  const Path step = find_checkpoint(options.resume);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kModel);
  WEFT_CHECK(checkpoint.state.contains("config"), "resume: {} holds no configuration",
             step.string());
  Config config = config_from_json(checkpoint.state.at("config"));
  const auto keeps_batch = [&] {
    if (config.global_batch_size == 0)
      config.global_batch_size = config.batch_size * data_devices_of(config);
  };
  if (options.devices > 0 && options.devices != config.devices) {
    keeps_batch();
    config.devices = options.devices;
  }
  if (!options.strategy.empty() && options.strategy != strategy_of(config)) {
    keeps_batch();
    config.strategy = options.strategy;
    // Those of the strategy before.
    config.shard_size = config.tensor_parallel = config.pipeline_stages = config.micro_batches = 0;
    config.cpu_offload = false;
  }
  if (options.tensor_parallel > 0) {
    keeps_batch();
    config.tensor_parallel = options.tensor_parallel;
  }
  if (options.pipeline_stages > 0) {
    keeps_batch();
    config.pipeline_stages = options.pipeline_stages;
  }
  validate(config);
  return config;
}

RunResult resume(const RunOptions& options) {
  const Config config = resumed_config(options);
  const Path step = find_checkpoint(options.resume);
  const Checkpoint checkpoint = load_checkpoint(step);
  return Run(config, options, {.checkpoint = &checkpoint, .step = step}).execute();
}

}  // namespace weft::train
