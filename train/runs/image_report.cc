#include "train/runs/image_report.h"

#include <fmt/core.h>

#include "io/json_field.h"
#include "train/fine_tuning.h"
#include "train/runs/run_heading.h"

namespace weft::train {
namespace {

std::string percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

/// Calls f(group, key, member) for all that is recorded.
template <class S, class F>
void for_each_figure(S& s, F&& f) {
  f("progress", "step", s.step);
  f("progress", "epoch", s.epoch);
  f("progress", "batch", s.batch);
  f("progress", "loss_sum", s.statistics.loss_sum);
  f("progress", "correct", s.statistics.correct);
  f("progress", "images", s.statistics.images);
  f("last_epoch", "loss", s.last_epoch.loss);
  f("last_epoch", "train_accuracy", s.last_epoch.train_accuracy);
  f("last_epoch", "val_loss", s.last_epoch.validation.loss);
  f("last_epoch", "val_accuracy", s.last_epoch.validation.accuracy);
}

}  // namespace

nlohmann::json to_json(const RunState& state) {
  nlohmann::json json;
  for_each_figure(state, [&](const char* group, const char* key, const auto& figure) {
    json[group][key] = figure;
  });
  return json;
}

RunState run_state_from_json(const nlohmann::json& json) {
  RunState state;
  for_each_figure(state, [&](const std::string& group, const char* key, auto& figure) {
    const nlohmann::json& figures = io::object_field(json, group);
    // Before the first epoch there are NaNs, which JSON lacks.
    const bool is_unknown = group == "last_epoch" && io::field(figures, key).is_null();
    if (!is_unknown) io::read_field(figures, key, figure);
  });
  return state;
}

void RunReport::begin(const Outset& outset, const RunState& state, const io::Path& output) {
  if (!is_main_) return;
  if (!json_) {
    print_heading(outset, state);
    table_.emplace(std::vector<io::Table::Column>{{"epoch", 7},
                                                  {"loss", 8},
                                                  {"train", 7},
                                                  {"val loss", 9},
                                                  {"val", 7},
                                                  {"images/s", 9},
                                                  {"time", 8}});
  }
  figures_.emplace(output, config_, state.step, state.epoch);
  if (!config_.weights.empty() && state.step == 0) {
    log_.write("weights", {{"file", config_.weights}, {"notes", outset.weight_notes}});
  }
}

void RunReport::print_heading(const Outset& outset, const RunState& state) const {
  const auto& [trained, splits, strategy, global_batch, state_tensors, steps_per_epoch,
               weight_notes] = outset;
  const auto count = [](const data::DatasetPtr& d) { return d ? d->size() : 0; };
  const std::string input = fmt::format("{} classes, {} x {} pixels", trained.classes.size(),
                                        trained.preprocess.size, trained.preprocess.size);
  fmt::print("{}\n",
             describe_model(config_, trained.model->num_parameters(), input, trained.device));
  if (!config_.weights.empty() && state.step == 0) {
    fmt::print("weights: {}\n", config_.weights);
    for (const std::string& note : weight_notes) fmt::print("weights: {}\n", note);
  }
  if (!config_.freeze.empty()) {
    int64_t frozen = trained.model->num_parameters();
    for (const auto& [name, p] : trained_parameters(*trained.model)) frozen -= p.numel();
    fmt::print("frozen: {} parameters\n", frozen);
  }
  fmt::print("{}: {} images to train, {} to validate, {} to test\n", config_.data,
             count(splits.train), count(splits.validation), count(splits.test));
  if (strategy) {
    fmt::print(
        "{}; batch {} of {}{}\n",
        strategy->describe(trained.model->num_parameters(), state_tensors), global_batch,
        config_.devices,
        config_.deterministic_reduce > 0
            ? fmt::format(", in {} micro-batches of fixed order", config_.deterministic_reduce)
            : "");
  }
  fmt::print("{}\n\n", describe_settings(config_, steps_per_epoch));
  std::fflush(stdout);
}

void RunReport::step(const RunState& state, const StepFigures& figures) {
  nlohmann::ordered_json event = {{"epoch", state.epoch + 1},
                                  {"step", state.step},
                                  {"loss", figures.loss},
                                  {"train_accuracy", state.statistics.accuracy()},
                                  {"val_accuracy", state.last_epoch.validation.accuracy},
                                  {"lr", figures.lr},
                                  {"images_per_second", figures.mean_images_per_second}};
  if (figures.loss_scale) event["loss_scale"] = *figures.loss_scale;
  if (figures.loss_scale || config_.nonfinite == "skip") event["skipped"] = figures.was_skipped;
  log_.write("step", event);
  if (!is_main_) return;
  RunFigures::Figures all = {{"loss/step", figures.loss}, {"lr", figures.lr}};
  if (figures.loss_scale) all.emplace_back("loss_scale", *figures.loss_scale);
  all.emplace_back("grad_norm", figures.grad_norm);
  all.emplace_back("images_per_second", static_cast<double>(figures.images) / figures.seconds);
  all.emplace_back("memory_bytes", static_cast<double>(figures.memory_bytes));
  figures_->record(state.step, std::move(all), figures.layers);
}

void RunReport::validation(const RunState& state, int64_t batches) {
  const Score& score = state.last_epoch.validation;
  if (table_) {
    const double epochs = static_cast<double>(state.epoch) +
                          static_cast<double>(state.batch) / static_cast<double>(batches);
    table_->row({fmt::format("{:.2f}{}", epochs, of_epochs(config_)),
                 fmt::format("{:.4f}", state.statistics.loss()),
                 percent(state.statistics.accuracy()), fmt::format("{:.4f}", score.loss),
                 percent(score.accuracy), "", ""});
  }
  log_.write("validation", {{"epoch", state.epoch + 1},
                            {"step", state.step},
                            {"val_loss", score.loss},
                            {"val_accuracy", score.accuracy}});
  if (!is_main_) return;
  figures_->record(state.step,
                   {{"loss/validation", score.loss}, {"accuracy/validation", score.accuracy}});
}

void RunReport::epoch(const RunState& state, bool is_validated, double images_per_second,
                      double seconds) {
  const EpochResult& e = state.last_epoch;
  const Score& score = e.validation;
  if (table_) {
    table_->row({fmt::format("{}{}", state.epoch + 1, of_epochs(config_)),
                 fmt::format("{:.4f}", e.loss), percent(e.train_accuracy),
                 is_validated ? fmt::format("{:.4f}", score.loss) : "",
                 is_validated ? percent(score.accuracy) : "",
                 fmt::format("{:.0f}", images_per_second), io::format_duration(seconds)});
  }
  log_.write("epoch", {{"epoch", state.epoch + 1},
                       {"step", state.step},
                       {"loss", e.loss},
                       {"train_accuracy", e.train_accuracy},
                       {"val_loss", score.loss},
                       {"val_accuracy", score.accuracy},
                       {"images_per_second", images_per_second},
                       {"seconds", seconds}});
  if (!is_main_) return;
  RunFigures::Figures all = {{"epoch", static_cast<double>(state.epoch + 1)},
                             {"loss/train", e.loss},
                             {"accuracy/train", e.train_accuracy}};
  if (is_validated) {
    all.emplace_back("loss/validation", score.loss);
    all.emplace_back("accuracy/validation", score.accuracy);
  }
  figures_->record(state.step, std::move(all));
}

void RunReport::findings(const Findings& findings, const io::Path& output) {
  if (!is_main_) return;
  write_findings(output / kFindingsFile, findings);
  for (size_t i = 0; i < findings.most_wrong.size(); ++i) {
    const WrongImage& image = findings.most_wrong[i];
    figures_->image(fmt::format("most wrong/{}", i + 1), findings.step, image.height, image.width,
                    image.png);
  }
}

void RunReport::interrupted(const RunState& state, const RunCheckpoints& checkpoints) {
  if (is_main_) checkpoints.report_interrupted(log_, state.step);
}

void RunReport::done(const RunState& state, const RunResult& result, double images_per_second,
                     const RunCheckpoints& checkpoints) {
  if (!is_main_) return;
  nlohmann::ordered_json done = {{"step", state.step},
                                 {"loss", state.last_epoch.loss},
                                 {"train_accuracy", state.last_epoch.train_accuracy},
                                 {"val_accuracy", result.validation_accuracy},
                                 {"test_accuracy", nullptr},
                                 {"images_per_second", images_per_second},
                                 {"seconds", result.seconds},
                                 {"stop_reason", result.stop_reason},
                                 {"checkpoint", result.checkpoint}};
  if (result.test_accuracy) done["test_accuracy"] = *result.test_accuracy;
  checkpoints.report_done(log_, done);
  if (json_) return;
  fmt::print("\n{}", describe_end(config_, result.stop_reason));
  if (result.test_accuracy) {
    fmt::print("test accuracy {:.2f}% on {} images never seen before, after {}\n",
               100 * *result.test_accuracy, result.test_images,
               io::format_duration(result.seconds));
  } else {
    const double accuracy = 100 * result.validation_accuracy;
    fmt::print(
        "{}, after {}\n",
        std::isnan(accuracy)
            ? "not validated: the run ended before"
            : fmt::format("validation accuracy {:.2f}% (the data has no test split)", accuracy),
        io::format_duration(result.seconds));
  }
  fmt::print("checkpoint {}\n{}weights    {}\n", result.checkpoint, checkpoints.describe_best(),
             (io::Path(result.output) / "model.safetensors").string());
}

std::FILE* RunReport::progress_stream() const {
  static std::FILE* const nowhere = std::fopen("/dev/null", "w");
  return is_main_ || !nowhere ? stderr : nowhere;
}

}  // namespace weft::train
