#include "train/runs/text_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/parallel.h"
#include "data/sets/open_text.h"
#include "data/tensors/text_windows.h"
#include "dist/comm/agreement.h"
#include "io/event_log.h"
#include "io/json_field.h"
#include "io/progress.h"
#include "io/sharded_safetensors.h"
#include "nn/loss.h"
#include "train/fine_tuning.h"
#include "train/optimization.h"
#include "train/pretrained/pretrained.h"
#include "train/runs/run_checkpoints.h"
#include "train/runs/run_figures.h"
#include "train/runs/run_heading.h"
#include "train/runs/text_model.h"
#include "train/stop_signals.h"
#include "train/trainer/trainer.h"
#include "train/trainer/watch_layers.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr const char* kTrainLoss = "loss/train";
constexpr const char* kValidationLoss = "loss/validation";

double value_of(const NamedValues& values, const std::string& name) {
  for (const auto& [known, value] : values) {
    if (known == name) return value;
  }
  return NAN;
}

/// The steps of a language model: mean cross-entropy of the bytes that follow, in nats a byte.
class NextByte : public TrainingModule {
 public:
  NextByte(const Config& config, models::Gpt& model) : config_(config), model_(model) {}

  nn::Module& model() override { return model_; }
  /// By the Fabric's forward(), which gives a rank its part of a parallel head's logits.
  Tensor training_step(const Batch& batch, int64_t) override {
    return loss(trainer().fabric().forward(model_, batch[0]), batch);
  }
  Tensor loss(const Tensor& logits, const Batch& batch) override {
    const Tensor mean =
        trainer().fabric().cross_entropy(ops::flatten(logits, 0, 1), ops::flatten(batch[1]));
    log(kTrainLoss, mean, {.on_step = true});
    return mean;
  }
  void validation_step(const Batch& batch, int64_t) override {
    const Tensor logits = model()(batch[0]);
    log(kValidationLoss, nn::cross_entropy(ops::flatten(logits, 0, 1), ops::flatten(batch[1])));
  }
  Optimization configure_optimizers() override {
    const int64_t steps = has_step_limit(config_) ? trainer().estimated_steps() : 0;
    return {make_optimizer(config_, model_), make_schedule(config_, steps)};
  }

 private:
  const Config& config_;
  models::Gpt& model_;
};

/// What a run says, and its directory: the text twin of train/runs/image_report.h. The figures of a
/// step are loss/step, lr, grad_norm, loss_scale, bytes_per_second and memory_bytes, those of an
/// epoch epoch, loss/train and loss/validation.
class TextReport : public Callback, public Logger {
 public:
  TextReport(const TextModel& text, const RunOptions& options, const data::TextSplits& splits,
             RunCheckpoints& checkpoints, std::shared_ptr<WatchLayers> watch)
      : text_(text),
        config_(text.config),
        options_(options),
        splits_(splits),
        checkpoints_(checkpoints),
        watch_(std::move(watch)),
        log_(options.json ? stdout : nullptr, StopSignals::request) {}

  // What every rank does.

  void on_fit_start(Trainer& trainer, TrainingModule& module) override {
    trainer_ = &trainer;
    model_ = &module.model();
    checkpoints_.claim_directory(options_, trainer, *model_);
  }
  void on_train_batch_start(Trainer& trainer, TrainingModule&, const Batch& batch,
                            int64_t) override {
    if (step_bytes_ == 0) {
      step_start_ = Clock::now();
      allocator(trainer.fabric().device()).reset_peak();
    }
    step_bytes_ += batch[0].numel() * trainer.fabric().data_size();
  }
  void on_before_optimizer_step(Trainer& trainer, TrainingModule&, optim::Optimizer&) override {
    loss_scale_ = trainer.fabric().scaler().get_scale();
  }

  /// Of a validation within an epoch; end_epoch() tells of the others.
  void on_validation_end(Trainer& trainer, TrainingModule&) override {
    if (!trainer.has_validated()) return;
    const int64_t step = validated_step_ = trainer.global_step();
    const bool ends_epoch = trainer.batch() == trainer.batches();
    if (!trainer.fabric().is_main() || ends_epoch) return;
    const double loss = trainer.metric(kValidationLoss);
    figures_->record(step, {{kValidationLoss, loss}});
    log_.write("validation", {{"epoch", trainer.epoch() + 1}, {"step", step}, {"val_loss", loss}});
    const double epochs =
        static_cast<double>(trainer.epoch()) +
        static_cast<double>(trainer.batch()) / static_cast<double>(trainer.batches());
    print_row({fmt::format("{:.2f}{}", epochs, of_epochs(config_)), fmt::format("{}", step), "",
               fmt::format("{:.4f}", loss), "", ""});
  }

  // What rank 0 hears.

  void begin(int64_t step) override {
    const bool has_notes = !config_.weights.empty() && step == 0;
    if (has_notes) log_.write("weights", {{"file", config_.weights}, {"notes", text_.notes}});
    if (!options_.json) print_heading(has_notes);
    figures_.emplace(checkpoints_.output(), config_, step, trainer_->epoch());
    epoch_start_ = Clock::now();
  }

  void log_metrics(int64_t step, const NamedValues& values) override {
    const double loss = value_of(values, std::string(kTrainLoss) + "_step");
    if (std::isnan(value_of(values, "lr"))) return;  // an epoch's means: end_epoch() has them all
    const double seconds = seconds_since(step_start_);
    const auto bytes = static_cast<double>(std::exchange(step_bytes_, 0));
    epoch_bytes_ += bytes;
    epoch_seconds_ += seconds;
    const double lr = value_of(values, "lr"), norm = value_of(values, "grad_norm");
    RunFigures::Figures all = {{"loss/step", loss}, {"lr", lr}};
    if (trainer_->fabric().scaler().is_enabled()) all.emplace_back("loss_scale", loss_scale_);
    all.emplace_back("grad_norm", norm);
    all.emplace_back("bytes_per_second", bytes / seconds);
    all.emplace_back("memory_bytes", static_cast<double>(trainer_->peak_bytes()));
    figures_->record(step, std::move(all), watch_ ? watch_->latest() : std::vector<LayerFigures>());
    log_.write("step", {{"epoch", trainer_->epoch() + 1},
                        {"step", step},
                        {"loss", loss},
                        {"lr", lr},
                        {"bytes_per_second", bytes / seconds}});
  }

  void end_epoch(int64_t epoch, int64_t step, const NamedValues& metrics) override {
    const double loss = value_of(metrics, kTrainLoss);
    const double validation = value_of(metrics, kValidationLoss);
    const bool is_validated = validated_step_ == step;  // else it is an earlier one's
    const double seconds = seconds_since(epoch_start_);
    epoch_start_ = Clock::now();
    bytes_per_second_ = std::exchange(epoch_bytes_, 0) / std::exchange(epoch_seconds_, 0);
    RunFigures::Figures all = {{"epoch", static_cast<double>(epoch + 1)}, {kTrainLoss, loss}};
    if (is_validated) all.emplace_back(kValidationLoss, validation);
    figures_->record(step, std::move(all));
    log_.write("epoch", {{"epoch", epoch + 1},
                         {"step", step},
                         {"loss", loss},
                         {"val_loss", validation},
                         {"bytes_per_second", bytes_per_second_},
                         {"seconds", seconds}});
    print_row({fmt::format("{}{}", epoch + 1, of_epochs(config_)), fmt::format("{}", step),
               fmt::format("{:.4f}", loss), is_validated ? fmt::format("{:.4f}", validation) : "",
               fmt::format("{:.0f}", bytes_per_second_), io::format_duration(seconds)});
  }

  void interrupted() { checkpoints_.report_interrupted(log_, trainer_->global_step()); }

  void done(double test_loss, int64_t test_bytes, const RunResult& result) {
    nlohmann::ordered_json done = {{"step", trainer_->global_step()},
                                   {"loss", value_of(trainer_->metrics(), kTrainLoss)},
                                   {"val_loss", value_of(trainer_->metrics(), kValidationLoss)},
                                   {"test_loss", test_loss},
                                   {"entropy", nullptr},
                                   {"bytes_per_second", bytes_per_second_},
                                   {"seconds", result.seconds},
                                   {"stop_reason", result.stop_reason},
                                   {"checkpoint", result.checkpoint}};
    if (splits_.entropy) done["entropy"] = *splits_.entropy;
    checkpoints_.report_done(log_, done);
    if (options_.json) return;
    const std::string beside = splits_.entropy
                                   ? fmt::format("the text's entropy is {:.4f}", *splits_.entropy)
                                   : fmt::format("{:.3f} bits", test_loss / std::log(2));
    fmt::print("\n{}test loss {:.4f} nats a byte ({}) on {} bytes never seen before, after {}\n",
               describe_end(config_, result.stop_reason), test_loss, beside, test_bytes,
               io::format_duration(result.seconds));
    const io::Path& output = checkpoints_.output();
    fmt::print("checkpoint {}\n{}weights    {}\ngo on      ./weft generate {} --prompt \"the \"\n",
               result.checkpoint, checkpoints_.describe_best(),
               (output / "model.safetensors").string(), output.string());
  }

 private:
  void print_row(const std::vector<std::string>& cells) {
    if (options_.json) return;
    if (!table_) {
      table_.emplace(std::vector<io::Table::Column>{
          {"epoch", 7}, {"step", 7}, {"loss", 8}, {"val loss", 9}, {"bytes/s", 9}, {"time", 8}});
    }
    table_->row(cells);
  }
  void print_heading(bool has_notes) const {
    Fabric& fabric = trainer_->fabric();
    const std::string window = fmt::format("{} bytes", models_context());
    fmt::print("{}\n", describe_model(config_, model_->num_parameters(), "sees " + window,
                                      fabric.device()));
    if (has_notes) fmt::print("weights: {}\n", config_.weights);
    for (const std::string& note : text_.notes) fmt::print("weights: {}\n", note);
    fmt::print("{}: {} bytes to train, {} to validate, {} to test\n", config_.data,
               splits_.train.size(), splits_.validation.size(), splits_.test.size());
    if (splits_.entropy) {
      fmt::print("{}: the entropy of its text is {:.4f} nats a byte: no model comes below\n",
                 config_.data, *splits_.entropy);
    }
    if (fabric.size() > 1) {
      fmt::print("{}\n", fabric.strategy().describe(model_->num_parameters(),
                                                    trainer_->optimizer().state_tensors()));
    }
    fmt::print(
        "{}\n\n",
        describe_settings(
            config_, (trainer_->batches() + config_.accumulate - 1) / config_.accumulate, window));
    std::fflush(stdout);
  }
  int64_t models_context() const { return model_->batch_row().shape[0]; }

  const TextModel& text_;
  const Config& config_;
  const RunOptions& options_;
  const data::TextSplits& splits_;
  RunCheckpoints& checkpoints_;
  const std::shared_ptr<WatchLayers> watch_;  // null: nobody looks
  io::EventLog log_;
  Trainer* trainer_ = nullptr;
  nn::Module* model_ = nullptr;
  std::optional<RunFigures> figures_;
  std::optional<io::Table> table_;
  double loss_scale_ = 1;
  Clock::time_point epoch_start_, step_start_;
  int64_t validated_step_ = -1;
  int64_t step_bytes_ = 0;
  double epoch_bytes_ = 0, epoch_seconds_ = 0, bytes_per_second_ = NAN;
};

/// A checksum of the bytes, and where they are cut.
nlohmann::json fingerprint(const data::TextSplits& splits) {
  nlohmann::json json;
  for (const auto& [part, bytes] :
       {std::pair("train", &splits.train), std::pair("validation", &splits.validation),
        std::pair("test", &splits.test)}) {
    json[part] = {{"bytes", bytes->size()},
                  {"crc32", io::checksum_of(std::as_bytes(std::span(*bytes)))}};
  }
  return json;
}

RunRecord record_of(const TextModel& text, const nlohmann::json& bytes) {
  const auto save = [&text, bytes](Trainer& trainer) {
    nlohmann::json state = describe(text);
    state.update({{"config", to_json(text.config)},
                  {"text", bytes},
                  {"trainer", trainer.state_dict()},
                  {"schedule", trainer.scheduler()->state_dict()}});
    return state;
  };
  const auto load = [&text, bytes](Trainer& trainer, const nlohmann::json& state) {
    // Older checkpoints know nothing of their text.
    if (state.contains("text")) {
      const nlohmann::json& saved = io::object_field(state, "text");
      WEFT_CHECK(saved == bytes, "{} has changed: its bytes are {}, the run had {}",
                 text.config.data, bytes.dump(), saved.dump());
    }
    trainer.load_state_dict(io::object_field(state, "trainer"));
    trainer.scheduler()->load_state_dict(io::field(state, "schedule"));
  };
  return {save, load};
}

/// What of a model the shapes of its weights do not tell.
io::Metadata metadata_of(const TextModel& text) {
  if (text.config.model != kGpt2) return {};
  const models::GptConfig& gpt = text.model->config;
  return source_metadata({.layer_norm_eps = gpt.eps, .heads = gpt.heads, .dropout = gpt.dropout});
}

RunResult run(TextModel text, const RunOptions& options, std::optional<Checkpoint> start = {},
              const io::Path& step = {}) {
  const Clock::time_point begin = Clock::now();
  const Config& config = text.config;
  check_supported(find_precision(config.precision), capabilities_of(options.device));
  if (options.threads > 0) set_num_threads(options.threads);
  const int64_t context = text.model->config.context;
  const data::TextSplits splits = data::open_text(config.data, context);
  freeze(*text.model, config.freeze);

  // An epoch is of as many steps, and each of the same windows, on whatever devices.
  const int64_t batch = global_batch_of(config);
  data::RandomWindowLoader train(splits.train,
                                 {.batch = batch, .length = context, .seed = config.seed});
  const auto held_out = [&](const data::Bytes& bytes) {
    return std::make_shared<data::WindowDataset>(bytes, context);
  };
  const auto tested = held_out(splits.test);
  data::TensorLoader validation(held_out(splits.validation), {.batch_size = batch}),
      test(tested, {.batch_size = batch});

  const nlohmann::json bytes = fingerprint(splits);
  const std::string beginning = describe_start(config, start ? &*start : nullptr) +
                                fmt::format("the bytes {}\n", bytes.dump());
  const auto checkpoints =
      std::make_shared<RunCheckpoints>(config, record_of(text, bytes), std::move(start), step);
  const auto watch = config.watch > 0 ? std::make_shared<WatchLayers>(config.watch) : nullptr;
  const auto report = std::make_shared<TextReport>(text, options, splits, *checkpoints, watch);
  TrainerOptions how = trainer_options(config, options);
  how.fabric.split_batches = true;
  how.callbacks.insert(how.callbacks.end(), {checkpoints, report});
  if (watch) how.callbacks.push_back(watch);
  how.loggers = {report};
  Trainer trainer(std::move(how));
  trainer.launch(options.world);
  if (trainer.fabric().world()) {
    dist::verify_same_lines(*trainer.fabric().world(), beginning, kOtherRun);
  }
  const auto batches_of = [&](const BatchSource& source) {
    return source.share(trainer.fabric())->per_epoch();
  };
  check_validation_interval(config, trained_batches(config, batches_of(train)));
  // Before anything is trained.
  for (data::TensorLoader* loader : {&validation, &test}) {
    evaluated_batches(config, batches_of(*loader));
  }
  // Behind the making of the model, which is done: rank 0 draws nothing twice.
  const uint64_t drawn = generator().offset;
  trainer.seed_everything(config.seed);
  generator().offset = drawn;
  NextByte module(config, *text.model);
  trainer.fit(module, train, BatchSource(validation));

  RunResult result = {.interrupted = trainer.was_interrupted(),
                      .stop_reason = trainer.stop_reason(),
                      .checkpoint = checkpoints->latest().string(),
                      .output = checkpoints->output().string()};
  const bool is_main = trainer.fabric().is_main();
  if (result.interrupted) {
    if (is_main) report->interrupted();
    return result;
  }
  checkpoints->write_final_weights(trainer.fabric(), *text.model, metadata_of(text));
  const double test_loss = value_of(trainer.validate(module, test), kValidationLoss);
  result.seconds = seconds_since(begin);
  // What the limit leaves. Of each window half is counted.
  const int64_t windows =
      std::min(tested->size(), evaluated_batches(config, batches_of(test)) * batch);
  if (is_main) report->done(test_loss, windows * (context / 2), result);
  return result;
}

}  // namespace

RunResult train_text(const Config& config, const RunOptions& options) {
  return run(make_text_model(config), options);
}

RunResult resume_text(const Config& config, const RunOptions& options, const io::Path& step) {
  // Of a sharded one each rank reads its part when it has a model.
  const bool is_sharded = io::is_sharded_state(step);
  Checkpoint checkpoint =
      load_checkpoint(step, is_sharded ? CheckpointParts::kState : CheckpointParts::kAll);
  TextModel text =
      io::read_at(step.string(), [&] { return remake_text_model(config, checkpoint.state); });
  return run(std::move(text), options, std::move(checkpoint), step);
}

}  // namespace weft::train
