// Keeps the best states of a fit, the latest one, or one every so often.
//
//   std::make_shared<train::ModelCheckpoint>(train::ModelCheckpointOptions{
//       .monitor = "val_loss", .save_top_k = 3, .save_last = true})
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/files.h"
#include "train/trainer/callback.h"
#include "train/trainer/top_k.h"

namespace weft::train {

struct ModelCheckpointOptions {
  std::string dirpath = {};  // empty: "checkpoints" in the Trainer's directory
  /// Without ".safetensors". "{epoch}" becomes "epoch=3", the epochs done, "{step}" the steps,
  /// "{NAME}" a metric, "{NAME:.2f}" in that format. A name that is there gets "-v1", "-v2", ...
  std::string filename = "{epoch}-{step}";
  /// A metric; empty: the latest is the best. Nothing is ranked before its first value.
  std::string monitor = {};
  Mode mode = Mode::kMin;
  int save_top_k = 1;  // states that are kept; -1: all, 0: none
  /// Also "last.safetensors", whenever there is a save and at the end, in place of an older one;
  /// "last-v1.safetensors" where another ModelCheckpoint of the fit has that.
  bool save_last = false;
  // When; with neither of them after each validation, without validation after each epoch.
  int64_t every_n_train_steps = 0;
  std::optional<std::chrono::duration<double>> train_time_interval = {};
};

class ModelCheckpoint : public Callback {
 public:
  /// Throws Error for options that do not go together.
  explicit ModelCheckpoint(ModelCheckpointOptions options);

  /// Empty before the first.
  std::string best_model_path() const;
  /// Of best_model_path(); NaN before the first, and without a monitor.
  double best_model_score() const;
  /// Best first.
  std::vector<std::string> kept() const;
  std::string last_model_path() const { return last_.string(); }

  /// Throws Error when the directory cannot be written.
  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_save_point(Trainer& trainer, TrainingModule& module) override;
  std::string state_key() const override;
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  bool is_due(const Trainer& trainer) const;
  void decide(Trainer& trainer);
  void rank(Trainer& trainer);
  bool has(const io::Path& path) const;
  io::Path free_path(const Trainer& trainer, const std::string& name,
                     const std::function<bool(const io::Path&)>& is_taken) const;
  io::Path ranked_path(Trainer& trainer, const std::string& name) const;
  io::Path path_of_last(const Trainer& trainer) const;

  const ModelCheckpointOptions options_;
  io::Path directory_;
  bool continues_here_ = false;  // a fit whose states are in directory_, too
  TopK<io::Path> kept_;
  io::Path last_;
  double saved_at_ = 0;  // seconds of the fit
  // At the latest save point:
  int64_t decided_at_ = -1;          // its step
  std::optional<io::Path> ranked_;   // to be saved
  std::optional<io::Path> dropped_;  // to be removed then
  bool saves_last_ = false;
};

}  // namespace weft::train
