// A model together with what turns an image into its input: what checkpoints hold, eval and predict
// read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/transforms.h"
#include "nn/dispatch.h"
#include "nn/modes.h"
#include "nn/module.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/precision.h"

namespace weft::train {

struct TrainedModel {
  Config config;
  data::Preprocess preprocess;
  std::vector<std::string> classes;
  std::unique_ptr<nn::Module> model;
  Device device = {};
  std::string dispatched = {};  // what rests where; empty: all weights are on the device

  /// Moves the model; an optimizer is to be made after it.
  void move_to(Device to);
};

/// A fresh model for these settings; its weights come from config.seed.
TrainedModel make_trained_model(const Config& config, const data::Preprocess& preprocess,
                                const std::vector<std::string>& classes);

/// What the model takes from the data before it learns, if anything, of some of these images.
void adapt_to(TrainedModel& model, const data::Dataset& dataset);

/// What load_trained_model reads of a checkpoint's state.
nlohmann::json describe(const TrainedModel& model);
/// What a file of its weights alone says of it, so that read_pretrained knows it again.
io::Metadata weights_metadata(const TrainedModel& model);
/// The model of a run's directory or of one of its checkpoints. Throws Error naming the file, the
/// key or the tensor that is wrong. With a placement the weights come and go (nn/dispatch.h).
TrainedModel load_trained_model(const io::Path& path, const nn::Placement* placement = nullptr);
/// The same of a checkpoint in memory; errors name `path`. Without weights the model is left as its
/// constructor made it, which may be on the meta device (nn/meta.h).
TrainedModel restore_model(const Checkpoint& checkpoint, const io::Path& path,
                           bool with_weights = true);

/// The vision transformer whose weights a file holds, with the preprocessing of its source: what
/// eval and predict take instead of a checkpoint. Classes that the file does not name are called
/// "class 0", ... Throws Error naming the file and what is missing. With a placement the weights
/// come and go (nn/dispatch.h).
TrainedModel load_pretrained_model(const io::Path& path, const nn::Placement* placement = nullptr);
/// True when the file names the model's classes.
bool has_class_names(const TrainedModel& model);

/// The logits [N, classes] by which a model of these settings classifies images [N, 3, size, size]:
/// with test_time_flip the means of an image's and its mirror image's. To be called in the config's
/// precision (enter_precision()).
Tensor classifying_logits(const Config& config, const std::function<Tensor(const Tensor&)>& forward,
                          const Tensor& images);

/// How good a model is on a data set.
struct Score {
  double loss = 0;      // mean cross-entropy
  double accuracy = 0;  // a fraction
  int64_t examples = 0;
};

/// Measures a model batch by batch, in config.precision and config.matmul_numerics. While it lives
/// the model is in evaluation mode, without a tape.
class Evaluator {
 public:
  using Forward = std::function<Tensor(const Tensor&)>;

  /// `forward`: called in the place of the model.
  explicit Evaluator(TrainedModel& model, Forward forward = {});
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Counts images [N, 3, size, size] with their labels i64 [N], and returns the logits
  /// [N, classes]. Of an empty batch, which a rank goes along with so that sharded parameters can
  /// be unsharded, it returns nothing.
  Tensor add(const Tensor& images, const Tensor& labels);
  const Score& score() const { return score_; }

 private:
  TrainedModel& trained_;
  const Forward forward_;
  const NoGrad guard_;
  const nn::EvalScope evaluating_;
  Fp8Scaling fp8_;              // evaluation scales each tensor by its own amax
  const PrecisionScope scope_;  // one for all batches: the weights are cast once
  double loss_sum_ = 0, correct_ = 0;
  Score score_;
};

struct Evaluation {
  int64_t limit = 0;  // batches; 0: all
  /// Called after each batch with the batches done and the score so far; ends it by false.
  std::function<bool(int64_t, const Score&)> progress = {};
  /// Called with each batch that is not empty and its logits [N, classes].
  std::function<void(const data::Batch&, const Tensor&)> each = {};
};

/// The model on every batch of the loader's next epoch.
Score evaluate(TrainedModel& model, data::Loader& loader, const Evaluation& evaluation = {});

/// Rows of `logits` [N, C] whose largest entry stands at their label.
int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace weft::train
