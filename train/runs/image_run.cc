#include "train/runs/image_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/graph.h"
#include "core/parallel.h"
#include "data/sets/open.h"
#include "dist/comm/agreement.h"
#include "dist/comm/exact_sum.h"
#include "io/json_field.h"
#include "io/sharded_safetensors.h"
#include "nn/meta.h"
#include "train/findings.h"
#include "train/fine_tuning.h"
#include "train/optimization.h"
#include "train/pretrained/pretrained.h"
#include "train/runs/image_report.h"
#include "train/runs/run_checkpoints.h"
#include "train/runs/run_heading.h"
#include "train/stop_signals.h"
#include "train/trained_model.h"
#include "train/trainer/watch_layers.h"

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

/// A global batch, and how the ranks share it.
struct GlobalBatch {
  explicit GlobalBatch(const Config& config) : images(global_batch_of(config)) {
    const dist::Sharing sharing = sharing_of(config);
    ranks = sharing.shard * sharing.replicas;
    micro_batches = config.deterministic_reduce > 0
                        ? static_cast<int>(config.deterministic_reduce)
                        : ranks * sharing.threads * static_cast<int>(sharing.micro_batches);
  }

  /// Micro-batches of a rank.
  int64_t of_rank() const { return micro_batches / ranks; }
  /// The number, among all of an epoch, of a rank's micro-batch `index`.
  int64_t number(int64_t index, int rank) const {
    return index / of_rank() * micro_batches + index % of_rank() * ranks + rank;
  }
  /// Options of a loader that gives a rank's part.
  data::LoaderOptions share(data::LoaderOptions options, int rank, bool trains) const {
    options.batch_size = images;
    options.micro_batches = trains ? micro_batches : ranks;
    options.ranks = ranks;
    options.rank = rank;
    options.workers = std::max(1, num_threads());
    options.watch = std::make_shared<data::WatchedLoaders>();  // it is shared out already
    return options;
  }

  int64_t images;
  int micro_batches = 1;
  int ranks = 1;  // those that take different images
};

/// What a run continues or begins with, if anything.
struct Start {
  std::optional<Checkpoint> checkpoint = {};  // of the same run, read from `step`
  io::Path step = {};
  std::optional<Pretrained> weights = {};
};

/// A checksum of which examples there are, in which order and under which labels.
std::string fingerprint(const data::Dataset& dataset) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::string example = fmt::format("{} {}\n", dataset.label(i), dataset.name(i));
    sum = io::crc32_of(std::as_bytes(std::span(example)), sum);
  }
  return io::checksum_text(sum);
}

/// Of the data's parts.
struct Fingerprints {
  std::string train, validation;
};

/// Throws Error on all ranks of a run where one was started with other settings or data, or goes on
/// from another checkpoint.
void verify_same_run(Fabric& fabric, const Config& config, const data::Splits& splits,
                     const Fingerprints& examples, const Start& start) {
  if (!fabric.world()) return;
  std::string lines = describe_start(config, start.checkpoint ? &*start.checkpoint : nullptr);
  for (const auto& [name, dataset, checksum] :
       {std::tuple("train", splits.train, examples.train),
        std::tuple("validation", splits.validation, examples.validation)}) {
    lines += fmt::format("{} to {}, checksum {}\n", dataset->size(), name, checksum);
    if (dataset->size() == 0) continue;
    // Of what they show a few: a copy of the data that is older than the others.
    for (const int64_t i : {int64_t{0}, dataset->size() / 2, dataset->size() - 1}) {
      const data::Image image = dataset->image(i);
      lines += fmt::format("{}: image {} of checksum {}\n", name, i,
                           io::checksum_of(std::as_bytes(std::span(image.pixels))));
    }
  }
  dist::verify_same_lines(*fabric.world(), lines, kOtherRun);
}

/// False where one rank takes whole batches.
bool is_shared(const GlobalBatch& batch, const Fabric& fabric) {
  return fabric.size() > 1 || batch.micro_batches > 1;
}

/// What a rank counted. The loss is summed exactly.
struct Sums {
  dist::ExactSum loss;
  int64_t correct = 0, images = 0;

  double mean_loss() const { return loss.value() / static_cast<double>(images); }
};

/// The sums of all ranks. A loss that several ranks computed counts once.
Sums sum_over_ranks(const Fabric& fabric, Sums mine) {
  const dist::CommunicatorPtr& world = fabric.world();
  if (!world) return mine;
  if (!fabric.strategy().counts()) mine = {};
  dist::all_reduce(mine.loss, *world);
  const Tensor counts = Tensor::from(std::vector<int64_t>{mine.correct, mine.images}, {2});
  world->all_reduce(counts).wait();
  const int64_t* c = counts.data<int64_t>();
  return {mine.loss, c[0], c[1]};
}

/// The steps of a classifier. A batch is images, labels and, with mixup or cutmix, soft labels; a
/// rank without a share of one goes along with an image that counts for nothing: one of the step's,
/// where it had any, since batch norms take its statistics.
class ImageModule : public TrainingModule {
 public:
  /// `statistics`: of the epoch at hand, which somebody else keeps.
  ImageModule(const Config& config, TrainedModel& trained, const GlobalBatch& batch,
              const EpochStatistics& statistics)
      : config_(config), trained_(trained), global_(batch), statistics_(statistics) {}

  nn::Module& model() override { return *trained_.model; }
  Optimization configure_optimizers() override { return make_optimizer(config_, model()); }

  Tensor input(const Batch& batch) override {
    const int size = trained_.preprocess.size;
    if (!is_empty(batch)) {
      if (is_shared(global_, trainer().fabric())) filler_ = ops::narrow(batch[0], 0, 0, 1);
      return ops::to(batch[0], trained_.device);
    }
    return ops::to(filler_.defined() ? filler_ : Tensor::zeros({1, 3, size, size}),
                   trained_.device);
  }
  Tensor loss(const Tensor& logits, const Batch& batch) override {
    const Tensor targets = is_empty(batch) ? Tensor::zeros({1}, DType::i64) : batch.back();
    dist::Strategy& strategy = trainer().fabric().strategy();
    const Tensor mean = strategy.cross_entropy(logits, ops::to(targets, trained_.device),
                                               {.label_smoothing = config_.label_smoothing});
    if (!is_empty(batch)) {
      const NoGrad guard;
      const Tensor predicted = strategy.predicted(logits);
      const Tensor is_right = ops::eq(predicted, ops::to(batch[1], predicted.device()));
      // A graph writes to its own in every step.
      (DeviceGraph::capturing() ? captured_ : at_hand_)
          .push_back({detach(mean), ops::sum(is_right), batch[0].size(0)});
    }
    return mean;
  }
  double share(const Batch& batch, int64_t batches) const override {
    const auto count = static_cast<double>(batches);
    if (!is_shared(global_, trainer().fabric())) return 1.0 / count;
    if (config_.gradient_average == "ranks") {
      return 1.0 / (count * static_cast<double>(global_.ranks));
    }
    return static_cast<double>(batch[0].size(0)) /
           (static_cast<double>(batches / global_.of_rank()) * static_cast<double>(global_.images));
  }
  /// Not finite when the loss of a micro-batch of the step at hand is not: where it was computed.
  Tensor any_loss() const {
    const NoGrad guard;
    Tensor sum = at_step().front().loss;
    for (size_t i = 1; i < at_step().size(); ++i) sum = sum + at_step()[i].loss;
    return sum;
  }
  /// What the micro-batches of a step came to on all ranks, for which it waits. Every rank calls.
  Sums take_sums() {
    Sums sums;
    for (const Outcome& outcome : at_step()) {
      sums.loss.add(outcome.loss.item() * static_cast<double>(outcome.images));
      sums.correct += static_cast<int64_t>(outcome.correct.item());
      sums.images += outcome.images;
    }
    at_hand_.clear();
    filler_ = {};
    return sum_over_ranks(trainer().fabric(), sums);
  }

  /// Of the steps' images over all ranks, for who goes by a metric.
  void on_train_epoch_end() override {
    log("loss/train", statistics_.loss());
    log("accuracy/train", statistics_.accuracy());
  }
  void on_validation_epoch_start() override {
    verdicts_.clear();
    evaluator_.emplace(trained_, [this](const Tensor& x) {
      return trainer().fabric().strategy().forward(model(), x);
    });
  }
  void validation_step(const Batch& batch, int64_t index) override {
    const Tensor logits = evaluator_->add(batch[0], batch[1]);
    if (!logits.defined()) return;
    append_verdicts(
        verdicts_,
        {.labels = batch[1], .index = index * global_.ranks + trainer().fabric().data_rank()},
        logits);
  }
  void on_validation_epoch_end() override {
    const Score mine = measured();
    const Fabric& fabric = trainer().fabric();
    if (fabric.size() > 1) {
      const auto n = static_cast<double>(mine.examples);
      Sums sums = {.correct = std::llround(mine.accuracy * n), .images = mine.examples};
      if (mine.examples > 0) sums.loss.add(mine.loss * n);
      sums = sum_over_ranks(fabric, sums);
      const auto all = static_cast<double>(sums.images);
      score_ = {sums.mean_loss(), static_cast<double>(sums.correct) / all, sums.images};
    } else {
      score_ = mine;
    }
    log("loss/validation", score_.loss);
    log("accuracy/validation", score_.accuracy);
    end_measuring();
  }
  /// Where it was cut short, too: the evaluator holds the model's mode and precision.
  void end_measuring() { evaluator_.reset(); }
  /// Of this rank's images so far.
  const Score& measured() const { return evaluator_->score(); }
  /// What the last measurement that was not cut short came to.
  const Score& score() const { return score_; }
  /// On the images of the last measurement.
  const std::vector<Verdict>& verdicts() const { return verdicts_; }

 private:
  /// Of a micro-batch.
  struct Outcome {
    Tensor loss, correct;  // on the device
    int64_t images;
  };

  static bool is_empty(const Batch& batch) { return batch[0].size(0) == 0; }
  const std::vector<Outcome>& at_step() const { return at_hand_.empty() ? captured_ : at_hand_; }

  const Config& config_;
  TrainedModel& trained_;
  const GlobalBatch& global_;
  const EpochStatistics& statistics_;
  std::vector<Outcome> at_hand_, captured_;
  Tensor filler_;  // of the step at hand
  std::optional<Evaluator> evaluator_;
  Score score_;
  std::vector<Verdict> verdicts_;
};

/// What happens around the steps: streams of random numbers, the learning rate, figures, progress
/// bars, the run's directory, and what its checkpoints record.
class ImageRun : public Callback {
 public:
  struct Parts {
    const Config& config;
    const RunOptions& options;
    const data::Splits& splits;
    const Fingerprints& examples;
    const TrainedModel& trained;
    const GlobalBatch& batch;
    ImageModule& module;
    RunState& state;                               // the run's figures; the place is the trainer's
    const std::vector<std::string>& weight_notes;  // what was done to make the weights fit
    int64_t train_batches, validation_batches;     // micro-batches of this rank
  };

  ImageRun(const Parts& parts, Trainer& trainer, Start start)
      : p_(parts),
        trainer_(trainer),
        report_(parts.config, trainer.fabric().is_main(), parts.options.json),
        schedule_(make_schedule(parts.config, most_steps())),
        checkpoints_(std::make_shared<RunCheckpoints>(
            parts.config,
            RunRecord{.save = [this](Trainer&) { return state(); },
                      .load = [this](Trainer&, const nlohmann::json& state) { take_up(state); }},
            std::move(start.checkpoint), start.step)) {
    if (p_.config.watch > 0) watch_ = std::make_shared<WatchLayers>(p_.config.watch);
  }

  const std::shared_ptr<RunCheckpoints>& checkpoints() const { return checkpoints_; }
  const std::shared_ptr<WatchLayers>& watch() const { return watch_; }
  RunReport& report() { return report_; }
  RunState place() const {
    RunState state = p_.state;
    state.step = trainer_.global_step();
    state.epoch = trainer_.epoch();
    state.batch = trainer_.batch() / p_.batch.of_rank();
    return state;
  }
  double images_per_second() const { return images_per_second_; }
  /// Whether the latest validation was of the weights as they are.
  bool has_validated_these() const { return validated_step_ == trainer_.global_step(); }

  void on_fit_start(Trainer&, TrainingModule&) override {
    checkpoints_->claim_directory(p_.options, trainer_, *p_.trained.model);
  }
  void on_train_start(Trainer&, TrainingModule&) override {
    const Fabric& fabric = trainer_.fabric();
    report_.begin({.trained = p_.trained,
                   .splits = p_.splits,
                   .strategy = is_shared(p_.batch, fabric) ? &fabric.strategy() : nullptr,
                   .global_batch = p_.batch.images,
                   .state_tensors = trainer_.optimizer().state_tensors(),
                   .steps_per_epoch = steps_per_epoch(),
                   .weight_notes = p_.weight_notes},
                  place(), checkpoints_->output());
    epoch_start_ = Clock::now();
  }

  void on_train_batch_start(Trainer&, TrainingModule&, const Batch&, int64_t index) override {
    if (!std::exchange(is_in_step_, true)) {
      step_start_ = Clock::now();
      allocator(p_.trained.device).reset_peak();
    }
    if (!progress_) {
      const int64_t epochs = epoch_limit(p_.config).value_or(trainer_.epoch() + 1);
      const int64_t epochs_after = epochs - trainer_.epoch() - 1;
      progress_.emplace(fmt::format("epoch {}{}", trainer_.epoch() + 1, of_epochs(p_.config)),
                        p_.train_batches,
                        io::ProgressOptions{.out = report_.progress_stream(),
                                            .first_step = index,
                                            .first_image = p_.state.statistics.images,
                                            .steps_after = epochs_after * p_.train_batches});
    }
    if (!is_shared(p_.batch, trainer_.fabric())) return;
    // The word "rank" keeps these streams apart from those of initialisers and data.
    constexpr uint64_t kRank = 0x72616e6b;
    generator() = {
        .seed = p_.config.seed,
        .stream = kRank << 32 ^ static_cast<uint64_t>(trainer_.epoch()) << 40 ^
                  static_cast<uint64_t>(p_.batch.number(index, trainer_.fabric().data_rank()))};
  }
  void on_before_optimizer_step(Trainer&, TrainingModule&, optim::Optimizer& optimizer) override {
    if (trainer_.fabric().size() == 1) {
      trainer_.refuse_nonfinite("the loss", p_.module.any_loss());
    } else {
      count_step();
      const double loss = step_.mean_loss();
      if (!std::isfinite(loss)) trainer_.refuse_step(fmt::format("the loss is {}", loss));
    }
    // The schedule follows the data: a step that is left out counts.
    optimizer.set_lr(p_.config.lr * schedule_(trainer_.global_step()));
    loss_scale_ = trainer_.fabric().scaler().get_scale();
  }
  void on_train_batch_end(Trainer&, TrainingModule&, const Tensor&, const Batch&,
                          int64_t) override {
    if (!trainer_.has_stepped()) return;
    if (trainer_.fabric().size() == 1) count_step();
    is_in_step_ = false;
    const EpochStatistics& s = p_.state.statistics;
    progress_->update(trainer_.batch(), s.images, s.loss(), s.accuracy());
    StepFigures figures = {.loss = step_.mean_loss(),
                           .lr = trainer_.optimizer().lr(),
                           .grad_norm = trainer_.grad_norm(),
                           .was_skipped = trainer_.was_skipped(),
                           .images = step_.images,
                           .seconds = seconds_since(step_start_),
                           .mean_images_per_second = progress_->images_per_second(),
                           .memory_bytes = trainer_.peak_bytes()};
    if (trainer_.fabric().scaler().is_enabled()) figures.loss_scale = loss_scale_;
    if (watch_) figures.layers = watch_->latest();
    report_.step(place(), figures);
  }

  void on_sanity_check_start(Trainer&, TrainingModule&) override {
    const int64_t asked = p_.config.num_sanity_val_steps;
    measure_with_progress(
        "sanity check", asked < 0 ? p_.validation_batches : std::min(asked, p_.validation_batches));
  }
  void on_sanity_check_end(Trainer&, TrainingModule&) override { end_measuring(); }
  void on_validation_start(Trainer&, TrainingModule&) override {
    if (progress_) images_per_second_ = progress_->images_per_second();
    measure_with_progress("validation", p_.validation_batches);
  }
  void on_validation_batch_end(Trainer&, TrainingModule&, const Batch&, int64_t index) override {
    const Score& so_far = p_.module.measured();
    progress_->update(index + 1, so_far.examples, so_far.loss, so_far.accuracy);
  }
  void on_validation_end(Trainer&, TrainingModule&) override {
    end_measuring();
    if (!trainer_.has_validated()) return;
    validated_step_ = trainer_.global_step();
    p_.state.last_epoch.validation = p_.module.score();
    const bool ends_epoch = trainer_.batch() == p_.train_batches;
    if (!ends_epoch) report_.validation(place(), p_.train_batches / p_.batch.of_rank());
  }
  void measure_with_progress(const std::string& label, int64_t batches) {
    progress_.reset();
    progress_.emplace(label, batches, io::ProgressOptions{.out = report_.progress_stream()});
  }
  void end_measuring() {
    progress_.reset();
    p_.module.end_measuring();
  }
  void on_train_epoch_end(Trainer&, TrainingModule&) override {
    const EpochStatistics s = std::exchange(p_.state.statistics, {});
    p_.state.last_epoch = {s.loss(), s.accuracy(), p_.state.last_epoch.validation};
    report_.epoch(place(), has_validated_these(), images_per_second_, seconds_since(epoch_start_));
    epoch_start_ = Clock::now();
  }
  void on_save_point(Trainer&, TrainingModule&) override {
    if (!trainer_.is_stopping() || !progress_) return;
    images_per_second_ = progress_->images_per_second();
    progress_.reset();
  }

  /// Writes what the ranks together found in the last validation.
  void publish_findings() {
    const Tensor all = trainer_.fabric().gather_for_metrics(to_rows(p_.module.verdicts()));
    if (!trainer_.fabric().is_main()) return;
    Findings findings = make_findings(from_rows(all), *p_.splits.validation);
    findings.step = trainer_.global_step();
    report_.findings(findings, checkpoints_->output());
  }

 private:
  void count_step() {
    step_ = p_.module.take_sums();
    if (!std::isfinite(step_.mean_loss())) return;
    p_.state.statistics.loss_sum += step_.loss.value();
    p_.state.statistics.correct += step_.correct;
    p_.state.statistics.images += step_.images;
  }
  int64_t steps_per_epoch() const {
    const int64_t in_step = p_.config.accumulate * p_.batch.of_rank();
    return (p_.train_batches + in_step - 1) / in_step;
  }

  /// 0: nobody knows.
  int64_t most_steps() const {
    const std::optional<int64_t> epochs = epoch_limit(p_.config);
    if (!epochs) return p_.config.max_steps;
    const int64_t all = steps_per_epoch() * *epochs;
    return p_.config.max_steps > 0 ? std::min(all, p_.config.max_steps) : all;
  }

  nlohmann::json state() const {
    nlohmann::json state = describe(p_.trained);
    const Generator& g = generator();
    state["generator"] = {{"seed", g.seed}, {"stream", g.stream}, {"offset", g.offset}};
    state["images"] = {{"train", p_.splits.train->size()},
                       {"validation", p_.splits.validation->size()},
                       {"train_crc32", p_.examples.train},
                       {"validation_crc32", p_.examples.validation}};
    state.update(to_json(place()));
    state[kHistory] = trainer_.history();
    // Runs of the same bits have the same states, unless they go by the clock.
    if (p_.config.max_time.empty()) state[kHistory].erase("seconds");
    return state;
  }
  void take_up(const nlohmann::json& state) {
    const nlohmann::json& images = io::object_field(state, "images");
    const auto train = io::field<int64_t>(images, "train");
    const auto validation = io::field<int64_t>(images, "validation");
    WEFT_CHECK(train == p_.splits.train->size() && validation == p_.splits.validation->size(),
               "{} has changed: {} images to train and {} to validate, the run had {} and {}",
               p_.config.data, p_.splits.train->size(), p_.splits.validation->size(), train,
               validation);
    // Older checkpoints have the numbers alone.
    for (const auto& [key, examples] : {std::pair("train_crc32", p_.examples.train),
                                        std::pair("validation_crc32", p_.examples.validation)}) {
      if (!images.contains(key)) continue;
      const auto saved = io::field<std::string>(images, key);
      WEFT_CHECK(saved == examples,
                 "{} has changed: its images have other names, classes or another order than those "
                 "of the run ({} is {}, it was {})",
                 p_.config.data, key, examples, saved);
    }
    const nlohmann::json& g = io::object_field(state, "generator");
    generator() = {.seed = io::field<uint64_t>(g, "seed"),
                   .stream = io::field<uint64_t>(g, "stream"),
                   .offset = io::field<uint64_t>(g, "offset")};
    p_.state = run_state_from_json(state);
    trainer_.seek({p_.state.epoch, p_.state.batch * p_.batch.of_rank()}, p_.state.step,
                  state.contains(kHistory) ? io::object_field(state, kHistory) : nlohmann::json());
  }

  static constexpr const char* kHistory = "history";

  const Parts p_;
  Trainer& trainer_;
  RunReport report_;
  const optim::Schedule schedule_;
  const std::shared_ptr<RunCheckpoints> checkpoints_;
  std::shared_ptr<WatchLayers> watch_;  // null: nobody looks
  Sums step_;
  double loss_scale_ = 1;
  bool is_in_step_ = false;
  Clock::time_point epoch_start_, step_start_;
  std::optional<io::Progress> progress_;
  double images_per_second_ = 0;  // of the last epoch trained here
  int64_t validated_step_ = -1;   // at which this process has validated last
};

/// A fresh model, or that of the checkpoint or the weights to begin with.
TrainedModel make_model(const Config& config, const data::Splits& splits, bool is_main,
                        const Start& start, std::vector<std::string>& weight_notes) {
  TrainedModel trained;
  // What wraps the model copies rank 0's weights: the others need no memory for theirs.
  std::optional<nn::MetaScope> meta;
  if (!is_main) meta.emplace();
  if (start.checkpoint) {
    const Checkpoint& checkpoint = *start.checkpoint;
    trained = restore_model(checkpoint, start.step, is_main && !checkpoint.is_sharded);
    trained.config = config;  // the devices and the strategy it goes on with are recorded
    WEFT_CHECK(trained.classes == splits.train->class_names(),
               "resume: the classes of {} are not those of {}", config.data, start.step.string());
  } else {
    const Pretrained* weights = start.weights ? &*start.weights : nullptr;
    trained = make_trained_model(config, preprocess_for(config, *splits.train, weights),
                                 splits.train->class_names());
    if (is_main) adapt_to(trained, *splits.train);
    if (weights && is_main) {
      weight_notes =
          load_pretrained(*trained.model, *weights, parse_interpolation(config.interpolation));
      if (config.normalize && !weights->guess.empty()) weight_notes.push_back(weights->guess);
    }
  }
  return trained;
}

RunResult run(const Config& config, const RunOptions& options, Start start) {
  const Clock::time_point begin = Clock::now();
  check_supported(find_precision(config.precision), capabilities_of(options.device));
  if (options.threads > 0) set_num_threads(options.threads);
  const GlobalBatch batch(config);
  const data::Splits splits = data::open_data(config.data, config.seed);
  if (!options.world || options.world->rank() == 0) {
    for (const std::string& line : data::left_out(splits)) {
      fmt::print(stderr, "weft: note: {}\n", line);
    }
  }
  TrainerOptions how = trainer_options(config, options);
  how.micro_batches = true;
  how.accumulate_grad_batches *= batch.of_rank();
  // A rank counts micro-batches, of whole batches. Where there is none the loader says why.
  const int64_t train_batches = trained_batches(config, splits.train->size() / batch.images);
  if (train_batches > 0) {
    check_validation_interval(config, train_batches);
    how.limit_train_batches = train_batches * batch.of_rank();
    how.val_check_interval =
        config.val_check_interval.of(train_batches, "val-check-interval") * batch.of_rank();
  }
  const auto evaluated = [&](const data::Dataset& dataset) {
    return evaluated_batches(config,
                             dataset.size() / batch.images + (dataset.size() % batch.images != 0));
  };
  const int64_t validation_batches = evaluated(*splits.validation);
  const int64_t test_batches = splits.test ? evaluated(*splits.test) : 0;
  how.deterministic_reduce = config.deterministic_reduce > 0;
  how.enable_progress_bar = false;
  // What is logged are means over an epoch alone.
  how.log_every_n_steps = std::numeric_limits<int64_t>::max();
  Trainer trainer(std::move(how));
  trainer.launch(options.world);
  Fabric& fabric = trainer.fabric();
  const Fingerprints examples = {fingerprint(*splits.train), fingerprint(*splits.validation)};
  verify_same_run(fabric, config, splits, examples, start);

  std::vector<std::string> weight_notes;
  TrainedModel trained = make_model(config, splits, fabric.is_main(), start, weight_notes);
  start.weights.reset();  // the model has its own copy
  freeze(*trained.model, config.freeze);
  trained.move_to(fabric.device());
  WEFT_CHECK(config.deterministic_reduce == 0 || trained.model->named_buffers().empty(),
             "deterministic-reduce: {} keeps running statistics, \"{}\" and others, of the batches "
             "that a rank has seen",
             config.model, trained.model->named_buffers()[0].first);

  data::Loader train(splits.train, batch.share({.shuffle = true,
                                                .drop_last = true,
                                                .seed = config.seed,
                                                .device = trained.device,
                                                .preprocess = trained.preprocess,
                                                .augmentation = config.augmentation},
                                               fabric.data_rank(), true));
  const auto measuring = [&](const data::DatasetPtr& dataset) {
    return std::make_unique<data::Loader>(
        dataset, batch.share({.preprocess = trained.preprocess}, fabric.data_rank(), false));
  };
  const auto validation = measuring(splits.validation);
  RunState state;
  ImageModule module(config, trained, batch, state.statistics);
  const auto around =
      std::make_shared<ImageRun>(ImageRun::Parts{.config = config,
                                                 .options = options,
                                                 .splits = splits,
                                                 .examples = examples,
                                                 .trained = trained,
                                                 .batch = batch,
                                                 .module = module,
                                                 .state = state,
                                                 .weight_notes = weight_notes,
                                                 .train_batches = train_batches * batch.of_rank(),
                                                 .validation_batches = validation_batches},
                                 trainer, std::move(start));
  trainer.add_callback(around->checkpoints());
  trainer.add_callback(around);
  if (around->watch()) trainer.add_callback(around->watch());
  const StopSignals signals;
  trainer.fit(module, train, BatchSource(*validation));

  RunResult result = {.interrupted = trainer.was_interrupted(),
                      .validation_accuracy = around->place().last_epoch.validation.accuracy,
                      .stop_reason = trainer.stop_reason(),
                      .checkpoint = around->checkpoints()->latest().string(),
                      .output = around->checkpoints()->output().string()};
  if (around->has_validated_these()) around->publish_findings();
  if (!result.interrupted) {
    around->checkpoints()->write_final_weights(fabric, *trained.model, weights_metadata(trained));
    if (splits.test) {
      const auto test = measuring(splits.test);
      around->measure_with_progress("test", test_batches);
      result.interrupted = trainer.validate(module, *test).empty();
      around->end_measuring();
      if (!result.interrupted) {
        result.test_accuracy = module.score().accuracy;
        result.test_images = module.score().examples;
      }
    }
  }
  result.seconds = seconds_since(begin);
  if (result.interrupted) {
    around->report().interrupted(around->place(), *around->checkpoints());
  } else {
    around->report().done(around->place(), result, around->images_per_second(),
                          *around->checkpoints());
  }
  return result;
}

}  // namespace

RunResult train_images(const Config& config, const RunOptions& options) {
  if (config.weights.empty()) return run(config, options, {});
  Pretrained weights = read_pretrained(config.weights);
  Config adapted = config;
  if (weights.names) {
    // A vision transformer goes on at the size of images it knows, with the eps it was trained at.
    if (config.image_size == 0) adapted.image_size = weights.preprocess.size;
    if (config.layer_norm_eps == 0) adapted.layer_norm_eps = weights.layer_norm_eps;
  }
  return run(adapted, options, {.weights = std::move(weights)});
}

RunResult resume_images(const Config& config, const RunOptions& options, const io::Path& step) {
  // Of a sharded one each rank reads its part when it has a model.
  const bool is_sharded = io::is_sharded_state(step);
  return run(config, options,
             {.checkpoint = load_checkpoint(
                  step, is_sharded ? CheckpointParts::kState : CheckpointParts::kAll),
              .step = step});
}

}  // namespace weft::train
