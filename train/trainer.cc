#include "train/trainer.h"

#include <fmt/core.h>
#include <signal.h>

#include <chrono>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/parallel.h"
#include "data/open.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "train/event_log.h"
#include "train/progress.h"
#include "train/trained_model.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

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
  }
  ~StopSignals() {
    sigaction(SIGINT, &previous_[0], nullptr);
    sigaction(SIGTERM, &previous_[1], nullptr);
  }

 private:
  struct sigaction previous_[2];
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

data::Preprocess preprocess_for(const Config& config, const data::Dataset& dataset) {
  const data::ImageFormat format = dataset.format();
  data::Preprocess preprocess;
  preprocess.size = static_cast<int>(config.image_size > 0 ? config.image_size : format.height);
  if (config.normalize) preprocess.normalization = format.normalization;
  return preprocess;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, const nn::Module& model) {
  optim::ParameterGroups groups = optim::without_decay_of_vectors(
      model.named_parameters(), {"pos_embedding", "class_token", "positional_emb"});
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

/// The factor on config.lr at each step.
optim::Schedule make_schedule(const Config& config, int64_t steps) {
  if (config.schedule == "one-cycle") {
    return optim::one_cycle(steps, {.warmup_fraction = config.warmup});
  }
  const auto rising = static_cast<int64_t>(std::lround(config.warmup * static_cast<double>(steps)));
  const optim::Schedule rest =
      config.schedule == "cosine" ? optim::cosine(steps - rising) : optim::constant();
  if (rising == 0) return rest;
  return optim::sequential({optim::linear_warmup(rising, 1.0 / static_cast<double>(rising)), rest},
                           {rising});
}

Path free_run_directory(const std::string& name) {
  for (int n = 1;; ++n) {
    const Path path = Path("runs") / fmt::format("{}-{}", name, n);
    if (!std::filesystem::exists(path)) return path;
  }
}

int loader_workers() { return std::max(1, num_threads()); }

class Run {
 public:
  Run(const Config& config, const RunOptions& options, const Checkpoint* checkpoint);
  RunResult execute();

 private:
  bool train_epoch(Progress& progress);
  void train_step();
  double lr() const { return config_.lr * schedule_(step_); }
  Score validate(data::Loader& loader, const std::string& label);
  void report_epoch(const Score& validation, double seconds);
  Path save();
  nlohmann::json state() const;
  void restore(const Checkpoint& checkpoint);
  void print_heading() const;

  Config config_;
  RunOptions options_;
  data::Splits splits_;
  TrainedModel trained_;
  std::unique_ptr<data::Loader> train_loader_, validation_loader_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  int64_t batches_per_epoch_ = 0, steps_per_epoch_ = 0;
  Path output_;
  EventLog log_;
  std::optional<Table> table_;

  int64_t step_ = 0;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // of the epoch: batches done
  EpochStatistics epoch_statistics_;
  double last_loss_ = NAN;
  Score last_validation_;
};

Run::Run(const Config& config, const RunOptions& options, const Checkpoint* checkpoint)
    : config_(config),
      options_(options),
      splits_(data::open_data(config.data, config.seed)),
      log_(options.json ? stdout : nullptr) {
  if (options.threads > 0) set_num_threads(options.threads);
  if (checkpoint) {
    trained_ = restore_model(*checkpoint);
    WEFT_CHECK(trained_.classes == splits_.train->class_names(),
               "resume: the checkpoint's classes are not those of {}", config.data);
  } else {
    trained_ = make_trained_model(config, preprocess_for(config, *splits_.train),
                                  splits_.train->class_names());
  }
  train_loader_ = std::make_unique<data::Loader>(
      splits_.train, data::LoaderOptions{.batch_size = config.batch_size,
                                         .shuffle = true,
                                         .drop_last = true,
                                         .seed = config.seed,
                                         .workers = loader_workers(),
                                         .preprocess = trained_.preprocess,
                                         .augmentation = config.augmentation});
  validation_loader_ = std::make_unique<data::Loader>(
      splits_.validation, data::LoaderOptions{.batch_size = config.batch_size,
                                              .workers = loader_workers(),
                                              .preprocess = trained_.preprocess});
  batches_per_epoch_ = train_loader_->batches();
  if (config.limit_batches > 0)
    batches_per_epoch_ = std::min(batches_per_epoch_, config.limit_batches);
  steps_per_epoch_ = (batches_per_epoch_ + config.accumulate - 1) / config.accumulate;
  optimizer_ = make_optimizer(config, *trained_.model);
  schedule_ = make_schedule(config, config.epochs * steps_per_epoch_);
  if (checkpoint) restore(*checkpoint);

  const std::string name = config.recipe.empty() ? config.model : config.recipe;
  output_ = options.output.empty() ? free_run_directory(name) : Path(options.output);
  WEFT_CHECK(checkpoint || !std::filesystem::exists(output_ / "latest"),
             "{} already holds a run; continue it with --resume {} or choose another --output",
             output_.string(), output_.string());
  make_directories(output_);
}

nlohmann::json Run::state() const {
  nlohmann::json state = describe(trained_);
  const Generator& g = generator();
  state["generator"] = {{"seed", g.seed}, {"stream", g.stream}, {"offset", g.offset}};
  state["progress"] = {{"step", step_},
                       {"epoch", epoch_},
                       {"batch", batch_},
                       {"loss_sum", epoch_statistics_.loss_sum},
                       {"correct", epoch_statistics_.correct},
                       {"images", epoch_statistics_.images}};
  state["optimizer"] = optimizer_->state_dict().groups;
  return state;
}

void Run::restore(const Checkpoint& checkpoint) {
  optimizer_->load_state_dict({checkpoint.optimizer, checkpoint.state.at("optimizer")});
  const nlohmann::json& g = checkpoint.state.at("generator");
  generator() = {g.at("seed"), g.at("stream"), g.at("offset")};
  const nlohmann::json& p = checkpoint.state.at("progress");
  p.at("step").get_to(step_);
  p.at("epoch").get_to(epoch_);
  p.at("batch").get_to(batch_);
  p.at("loss_sum").get_to(epoch_statistics_.loss_sum);
  p.at("correct").get_to(epoch_statistics_.correct);
  p.at("images").get_to(epoch_statistics_.images);
}

Path Run::save() {
  constexpr int kKeptCheckpoints = 2;
  return save_checkpoint(output_,
                         {.step = step_,
                          .model = trained_.model->state_dict(),
                          .optimizer = optimizer_->state_dict().tensors,
                          .state = state()},
                         kKeptCheckpoints);
}

void Run::train_step() {
  // The gradients of up to `accumulate` batches, each weighted by its share of the step's images.
  const int64_t parts = std::min(config_.accumulate, batches_per_epoch_ - batch_);
  optimizer_->zero_grad();
  double loss_sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const std::optional<data::Batch> batch = train_loader_->next();
    WEFT_ASSERT(batch.has_value());
    const Tensor& targets = batch->soft_labels.defined() ? batch->soft_labels : batch->labels;
    Tensor loss, logits;
    {
      const Autocast mode(autocast_of(config_.precision));
      logits = ops::cast((*trained_.model)(batch->images), DType::f32);
      loss = ops::cross_entropy(logits, targets, {.label_smoothing = config_.label_smoothing});
      backward(parts == 1 ? loss : loss * (1.0 / static_cast<double>(parts)));
    }
    const double value = loss.item();
    WEFT_CHECK(std::isfinite(value),
               "training diverged: the loss is {} at step {}; try a lower --lr", value, step_ + 1);
    loss_sum += value;
    epoch_statistics_.loss_sum += value * static_cast<double>(batch->size());
    epoch_statistics_.correct += count_correct(logits, batch->labels);
    epoch_statistics_.images += batch->size();
    ++batch_;
  }
  last_loss_ = loss_sum / static_cast<double>(parts);
  double clip = 1;
  if (config_.clip_norm > 0) {
    clip =
        optim::clip_coefficient(optim::grad_norm(trained_.model->parameters()), config_.clip_norm);
  }
  optimizer_->set_lr(lr());
  optimizer_->step(clip);
  ++step_;
}

/// True when the epoch is complete, false when a stop was requested.
bool Run::train_epoch(Progress& progress) {
  trained_.model->train();
  train_loader_->seek({epoch_, batch_});
  while (batch_ < batches_per_epoch_) {
    train_step();
    progress.update(batch_, epoch_statistics_.images, epoch_statistics_.loss(),
                    epoch_statistics_.accuracy());
    log_.write("step", {{"epoch", epoch_ + 1},
                        {"step", step_},
                        {"loss", last_loss_},
                        {"train_accuracy", epoch_statistics_.accuracy()},
                        {"lr", optimizer_->lr()},
                        {"images_per_second", progress.images_per_second()}});
    if (stop_requested) return false;
  }
  return true;
}

Score Run::validate(data::Loader& loader, const std::string& label) {
  int64_t total = loader.batches();
  if (config_.limit_batches > 0) total = std::min(total, config_.limit_batches);
  Progress progress(label, total);
  return evaluate(trained_, loader, config_.limit_batches, [&](int64_t done, const Score& score) {
    progress.update(done, score.examples, score.loss, score.accuracy);
  });
}

void Run::report_epoch(const Score& validation, double seconds) {
  const double rate = static_cast<double>(epoch_statistics_.images) / seconds;
  if (table_) {
    table_->row({fmt::format("{}/{}", epoch_ + 1, config_.epochs),
                 fmt::format("{:.4f}", epoch_statistics_.loss()),
                 fmt::format("{:.1f}%", 100 * epoch_statistics_.accuracy()),
                 fmt::format("{:.4f}", validation.loss),
                 fmt::format("{:.1f}%", 100 * validation.accuracy), fmt::format("{:.0f}", rate),
                 format_duration(seconds)});
  }
  log_.write("epoch", {{"epoch", epoch_ + 1},
                       {"step", step_},
                       {"loss", epoch_statistics_.loss()},
                       {"train_accuracy", epoch_statistics_.accuracy()},
                       {"val_loss", validation.loss},
                       {"val_accuracy", validation.accuracy},
                       {"images_per_second", rate},
                       {"seconds", seconds}});
}

void Run::print_heading() const {
  const auto count = [](const data::DatasetPtr& d) { return d ? d->size() : 0; };
  fmt::print("{}: {} parameters, {} classes, {} x {} pixels, {}, {} threads\n", config_.model,
             trained_.model->num_parameters(), trained_.classes.size(), trained_.preprocess.size,
             trained_.preprocess.size, config_.precision, num_threads());
  fmt::print("{}: {} images to train, {} to validate, {} to test\n", config_.data,
             count(splits_.train), count(splits_.validation), count(splits_.test));
  fmt::print("{}: {} epochs of {} steps, batch {}{}, {} with learning rate {} ({})\n\n",
             config_.recipe.empty() ? "settings" : config_.recipe, config_.epochs, steps_per_epoch_,
             config_.batch_size,
             config_.accumulate > 1 ? fmt::format(" x {}", config_.accumulate) : "",
             config_.optimizer, config_.lr, config_.schedule);
  std::fflush(stdout);
}

RunResult Run::execute() {
  const Clock::time_point start = Clock::now();
  const StopSignals signals;
  if (!options_.json) {
    print_heading();
    table_.emplace(std::vector<Table::Column>{{"epoch", 7},
                                              {"loss", 8},
                                              {"train", 7},
                                              {"val loss", 9},
                                              {"val", 7},
                                              {"images/s", 9},
                                              {"time", 8}});
  }
  RunResult result;
  for (; epoch_ < config_.epochs && !result.interrupted; ++epoch_) {
    const Clock::time_point epoch_start = Clock::now();
    bool complete = false;
    {
      Progress progress(fmt::format("epoch {}/{}", epoch_ + 1, config_.epochs), batches_per_epoch_);
      complete = train_epoch(progress);
    }
    if (!complete) {
      result.interrupted = true;
      result.checkpoint = save().string();
      break;
    }
    const double seconds = seconds_since(epoch_start);
    last_validation_ = validate(*validation_loader_, "validation");
    report_epoch(last_validation_, seconds);
    batch_ = 0;
    epoch_statistics_ = {};
    ++epoch_;  // the checkpoint's position is the next epoch's start
    result.checkpoint = save().string();
    --epoch_;
    result.interrupted = stop_requested && epoch_ + 1 < config_.epochs;
  }
  result.validation_accuracy = last_validation_.accuracy;
  result.seconds = seconds_since(start);
  if (result.interrupted) {
    fmt::print(stderr, "stopped after step {}; continue with: ./weft train --resume {}\n", step_,
               output_.string());
    log_.write("interrupted", {{"step", step_}, {"checkpoint", result.checkpoint}});
    return result;
  }
  write_safetensors(output_ / "model.safetensors", trained_.model->state_dict(),
                    {{"format", "pt"}});
  if (splits_.test) {
    data::Loader loader(splits_.test, {.batch_size = config_.batch_size,
                                       .workers = loader_workers(),
                                       .preprocess = trained_.preprocess});
    result.test_accuracy = validate(loader, "test").accuracy;
  }
  result.seconds = seconds_since(start);
  nlohmann::ordered_json done = {{"test_accuracy", nullptr},
                                 {"val_accuracy", result.validation_accuracy},
                                 {"seconds", result.seconds},
                                 {"checkpoint", result.checkpoint}};
  if (result.test_accuracy) done["test_accuracy"] = *result.test_accuracy;
  log_.write("done", done);
  if (!options_.json) {
    if (result.test_accuracy) {
      fmt::print("\ntest accuracy {:.2f}% on {} images never seen before, after {}\n",
                 100 * *result.test_accuracy, splits_.test->size(),
                 format_duration(result.seconds));
    } else {
      fmt::print(
          "\nvalidation accuracy {:.2f}% on {} images (the data has no test split), after {}\n",
          100 * result.validation_accuracy, splits_.validation->size(),
          format_duration(result.seconds));
    }
    fmt::print("checkpoint {}\nweights    {}\n", result.checkpoint,
               (output_ / "model.safetensors").string());
  }
  return result;
}

}  // namespace

RunResult train(const Config& config, const RunOptions& options) {
  validate(config);
  return Run(config, options, nullptr).execute();
}

RunResult resume(const RunOptions& options) {
  const Path step = find_checkpoint(options.resume);
  const Checkpoint checkpoint = load_checkpoint(step);
  WEFT_CHECK(checkpoint.state.contains("config"), "resume: {} holds no configuration",
             step.string());
  const Config config = config_from_json(checkpoint.state.at("config"));
  RunOptions continued = options;
  continued.output = step.parent_path().string();
  return Run(config, continued, &checkpoint).execute();
}

}  // namespace weft::train
