#include "train/trainer/early_stopping.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "io/json_field.h"
#include "train/exact_text.h"
#include "train/trainer/trainer.h"

namespace weft::train {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  WEFT_CHECK(!options_.monitor.empty(), "EarlyStopping: monitor: expected a metric's name");
  WEFT_CHECK(options_.patience > 0, "patience: expected a positive number of looks, got {}",
             options_.patience);
  WEFT_CHECK(options_.min_delta >= 0, "min_delta: expected a difference of 0 or more, got {}",
             options_.min_delta);
}

/// Why the patience is exhausted; empty where it is not.
std::string EarlyStopping::impatience() const {
  if (waited_ < options_.patience) return {};
  return fmt::format("{} has not got better than {:.4g} in {} looks", options_.monitor, best_,
                     waited_);
}

void EarlyStopping::on_train_start(Trainer& trainer, TrainingModule&) {
  std::string reason = std::exchange(resumed_reason_, {});
  if (reason.empty()) reason = impatience();
  if (!reason.empty()) trainer.stop(reason);
}

void EarlyStopping::on_validation_end(Trainer& trainer, TrainingModule&) {
  if (trainer.has_validated() && trainer.was_validated(options_.monitor)) look(trainer);
}

void EarlyStopping::on_train_epoch_end(Trainer& trainer, TrainingModule&) {
  if (!trainer.was_validated(options_.monitor)) look(trainer);
}

void EarlyStopping::look(Trainer& trainer) {
  const std::string& name = options_.monitor;
  const std::optional<double> found = trainer.metric_so_far(name, "EarlyStopping");
  if (!found) return;
  const double score = *found;
  // As if less were better.
  const double sign = options_.mode == Mode::kMin ? 1 : -1;
  const bool is_better =
      std::isnan(best_) ? !std::isnan(score) : sign * score < sign * best_ - options_.min_delta;
  if (is_better) best_ = score;
  waited_ = is_better ? 0 : waited_ + 1;
  std::string reason;
  if (options_.check_finite && !std::isfinite(score)) {
    reason = fmt::format("{} is {}", name, score);
  } else if (options_.stopping_threshold && sign * score < sign * *options_.stopping_threshold) {
    reason = fmt::format("{} = {:.4g} is beyond {:.4g}", name, score, *options_.stopping_threshold);
  } else {
    reason = impatience();
  }
  if (reason.empty()) return;
  stopped_epoch_ = trainer.epoch();
  if (reason != impatience()) reason_ = reason;
  trainer.stop(reason);
}

nlohmann::json EarlyStopping::state_dict() const {
  nlohmann::json state = {
      {"best", exact_text(best_)}, {"waited", waited_}, {"stopped_epoch", stopped_epoch_}};
  if (!reason_.empty()) state["reason"] = reason_;
  return state;
}

void EarlyStopping::load_state_dict(const nlohmann::json& state) {
  best_ = exact_number(io::field<std::string>(state, "best"));
  io::read_field(state, "waited", waited_);
  io::read_field(state, "stopped_epoch", stopped_epoch_);
  reason_.clear();
  if (state.contains("reason")) io::read_field(state, "reason", reason_);
  resumed_reason_ = reason_;
}

}  // namespace weft::train
