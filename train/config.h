// Everything that decides a training run, as one value: what the command line sets, what a recipe
// presets, and what a checkpoint records.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/transforms.h"
#include "dist/plan/sharing.h"
#include "dist/strategy/options.h"
#include "train/limit.h"
#include "train/precision.h"

namespace weft::train {

struct Config {
  std::string recipe;
  std::string data = "builtin";  // data/sets/open.h, data/sets/open_text.h
  std::string model = "cct";     // models/models.inc, models/gpt_names.h
  int64_t image_size = 0;        // pixels; 0: the data's own, at most 224

  // When it ends: whatever comes first, or early_stopping.
  int64_t epochs = 10;               // -1: no limit
  int64_t max_steps = 0;             // of the optimizer; 0: no limit
  std::string max_time;              // "90s", "10m", "2h", "1d" or "DD:HH:MM:SS"; empty: no limit
  int64_t batch_size = 64;           // images per device, or windows of text
  int64_t accumulate = 1;            // gradient accumulation: batches of one optimizer step
  Limit limit_batches = 0.0;         // of an epoch, and of an evaluation; 0: all
  Limit limit_val_batches = 0.0;     // of an evaluation; 0: as limit_batches
  Limit val_check_interval = 1.0;    // batches, of an epoch, from validation to validation
  int64_t num_sanity_val_steps = 0;  // validation batches tried before training; -1: all

  // What is best, and what becomes of it.
  std::string monitor = "loss/validation";  // a metric, see monitored()
  int64_t early_stopping = 0;  // patience: looks without improvement that end the run; 0: none do
  double min_delta = 0;        // an improvement is larger than this
  int64_t save_top_k = 0;      // best checkpoints that are kept besides the latest; -1: all

  // The weights that training starts from, and which of them are trained.
  std::string weights;                        // a file; empty: random, from the seed
  std::string interpolation = "torchvision";  // of position embeddings: torchvision, timm
  double layer_norm_eps = 0;                  // 0: the weights', or the model's own
  std::vector<std::string> freeze = {};       // patterns, see train/fine_tuning.h
  double layer_decay = 1;  // factor on the learning rate, from each layer to the one before

  std::string optimizer = "adamw";           // optim/registry.h
  double lr = 1e-3;                          // learning rate at the schedule's peak
  double weight_decay = 0.05;                // not on biases and normalisation
  double momentum = 0.9;                     // of an optimizer that has one
  bool nesterov = false;                     // sgd, muon
  std::vector<double> betas = {0.9, 0.999};  // adam, adamw, lamb: beta1 and beta2
  double eps = 1e-8;                         // adam, adamw, lamb
  double vector_lr = 1;                // factor on the learning rate of biases and other vectors
  double clip_norm = 1;                // 0: no clipping
  std::string nonfinite = "stop";      // a loss or gradient that is not finite: stop, skip the step
  std::string schedule = "one-cycle";  // one-cycle, cosine, constant; DeepSpeed's as JSON
  double warmup = 0.1;                 // share of all steps in which the learning rate rises
  double ema = 0;                      // decay of the moving average of the weights; 0: none
  double label_smoothing = 0;
  double drop_path = 0;

  data::Augmentation augmentation = {};
  bool test_time_flip = false;  // logits are the mean of an image's and its mirror image's
  bool normalize = true;        // with the data's own mean and deviation; else pixels in [0, 1]

  std::string precision = "fp32";          // train/precision.h, by our name
  std::string matmul_numerics = "ieee";    // kernels/gemm/matmul_numerics.h
  std::string tf32_rounding = "truncate";  // of tf32's operands: truncate, nearest
  std::string loss_scale = "dynamic";      // of fp16: dynamic, none, or a fixed number
  double initial_loss_scale = 65536;       // dynamic
  int64_t loss_scale_window = 2000;        // dynamic: steps without an infinity before it doubles
  int64_t loss_scale_hysteresis = 1;       // dynamic: infinities before it halves
  double min_loss_scale = 1;               // dynamic: an infinity at this scale ends the run
  std::string fp8_scaling = "current";     // current, delayed
  std::string fp8_level;                   // O1, O2, O3 (train/fp8_level.h); empty: none
  bool checkpoint_activations = false;
  uint64_t seed = 0;
  std::string save_every;  // besides epoch ends: steps, "500", or a time, "600s"; empty: never
  std::string state_dict_type = "full";  // of checkpoints: full, sharded
  int64_t watch = 0;                     // steps between looks at every layer; 0: none is taken
  bool detect_anomaly = false;           // AnomalyMode: every op is checked for NaN

  // Several ranks.
  int64_t devices = 1;  // ranks; under strategy dp threads
  dist::StrategyOptions strategy = {};
  int64_t global_batch_size = 0;             // images of all devices; 0: batch_size on each
  std::string gradient_average = "samples";  // samples: over all; ranks: as PyTorch's DDP
  int64_t deterministic_reduce = 0;          // micro-batches in the fixed tree; 0: not fixed
  std::string capture = "auto";      // the step as a CUDA graph: on, off; auto: where it can be
  std::string collectives = "auto";  // who adds on GPUs: nccl, exact; auto: exact where it is fixed
};

/// Whether a language model learns from text: train/runs/text_run.h; else a classifier from images:
/// train/runs/image_run.h.
bool is_of_text(const Config& config);
/// The keys of what is said of images alone, and is left as it is by a run on text.
const std::vector<std::string>& settings_of_images();

/// The language models that there are: models/gpt_names.h, and "gpt2", which its weights describe.
std::vector<std::string> text_model_names();
inline constexpr const char* kGpt2 = "gpt2";
/// The recipe for text.
inline constexpr const char* kTextRecipe = "gpt-quick";

/// The epochs at which a run ends; nothing: max_steps or max_time end it.
std::optional<int64_t> epoch_limit(const Config& config);
/// Whether it is known beforehand how many steps a run takes at most.
bool has_step_limit(const Config& config);

/// The metrics that a run may go by, and whether more of one is better.
std::vector<std::string> monitored(const Config& config);
bool is_more_better(const std::string& metric);

/// What of so many batches an epoch takes, and an evaluation. Throws Error naming the setting that
/// leaves none.
int64_t trained_batches(const Config& config, int64_t all);
int64_t evaluated_batches(const Config& config, int64_t all);
/// limit_val_batches, or where that says nothing limit_batches; 0: all.
Limit limit_of_evaluation(const Config& config);
/// Throws Error where an epoch of so many batches has fewer than from validation to validation.
void check_validation_interval(const Config& config, int64_t batches);

/// How the devices share the model and a batch; throws Error where they cannot.
dist::Sharing sharing_of(const Config& config);

/// The preset of that name; throws Error listing all names.
Config recipe(const std::string& name);
std::vector<std::string> recipe_names();
/// One line on what a recipe is for.
std::string recipe_summary(const std::string& name);

/// Throws Error naming the first setting that is out of range, its value and what was expected.
void validate(const Config& config);

/// config's precision, on this thread for as long as the scope lives.
PrecisionScope enter_precision(const Config& config, Fp8Scaling& fp8);
/// The number in config.loss_scale; throws Error when it is none.
double fixed_loss_scale(const Config& config);

struct SaveEvery {
  int64_t steps = 0;   // 0: no number of steps
  double seconds = 0;  // 0: no time
};
/// "", "500" or a duration; throws Error for anything else.
SaveEvery parse_save_every(const std::string& text);
/// Seconds of "90s", "10m", "2h", "1.5d" or "DD:HH:MM:SS"; nothing for anything else, and for no
/// time at all.
std::optional<double> parse_duration(const std::string& text);

nlohmann::json to_json(const Config& config);
/// A setting that is missing, in a checkpoint from before there was one, has its default: new
/// settings leave runs as they were. Throws Error naming an unknown key, or a value of another
/// type.
Config config_from_json(const nlohmann::json& json);

}  // namespace weft::train
