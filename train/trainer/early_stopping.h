// Ends a fit when a metric has stopped getting better.
//
//   std::make_shared<train::EarlyStopping>(train::EarlyStoppingOptions{.monitor = "val_loss"})
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "train/trainer/callback.h"
#include "train/trainer/top_k.h"

namespace weft::train {

struct EarlyStoppingOptions {
  std::string monitor = {};  // looked at after each validation that logs it, else after each epoch
  Mode mode = Mode::kMin;
  int64_t patience = 3;      // looks in a row without improvement after which it ends
  double min_delta = 0;      // an improvement is larger than this
  bool check_finite = true;  // NaN and infinities end it at once
  std::optional<double> stopping_threshold = {};  // what is good enough
};

class EarlyStopping : public Callback {
 public:
  /// Throws Error for options out of range.
  explicit EarlyStopping(EarlyStoppingOptions options);

  double best_score() const { return best_; }  // NaN before the first look
  int64_t wait_count() const { return waited_; }
  /// The epoch that it ended in, counted from 0; -1: it has not.
  int64_t stopped_epoch() const { return stopped_epoch_; }

  /// A fit that goes on from one whose patience was exhausted ends at once.
  void on_train_start(Trainer& trainer, TrainingModule& module) override;
  void on_validation_end(Trainer& trainer, TrainingModule& module) override;
  void on_train_epoch_end(Trainer& trainer, TrainingModule& module) override;
  std::string state_key() const override { return "EarlyStopping(" + options_.monitor + ")"; }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  void look(Trainer& trainer);
  std::string impatience() const;

  const EarlyStoppingOptions options_;
  double best_ = NAN;
  int64_t waited_ = 0;
  int64_t stopped_epoch_ = -1;
  std::string reason_;          // of a stop that no patience would have put off
  std::string resumed_reason_;  // that of the run which goes on: it has ended
};

}  // namespace weft::train
