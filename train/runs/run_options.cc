#include "train/runs/run_options.h"

#include <chrono>
#include <memory>
#include <utility>

#include "dist/plan/model_layout.h"
#include "dist/strategy/aliases.h"
#include "dist/strategy/strategy_kind.h"
#include "io/json_field.h"
#include "models/gpt_names.h"
#include "models/registry.h"
#include "nn/meta.h"
#include "train/checkpoint.h"
#include "train/trainer/early_stopping.h"
#include "train/trainer/weight_averaging.h"

namespace weft::train {
namespace {

/// Disabled where no loss is scaled.
optim::GradScalerOptions scaler_options(const Config& config) {
  optim::GradScalerOptions options;
  options.enabled = config.loss_scale != "none";
  if (options.enabled && config.loss_scale != "dynamic") {
    options.init_scale = fixed_loss_scale(config);
    return options;
  }
  options.init_scale = config.initial_loss_scale;
  options.growth_interval = config.loss_scale_window;
  options.hysteresis = config.loss_scale_hysteresis;
  options.min_scale = config.min_loss_scale;
  return options;
}

}  // namespace

FabricOptions fabric_options(const Config& config, Device device) {
  const bool is_delayed = config.fp8_scaling == "delayed";
  const bool is_nearest = config.tf32_rounding == "nearest";
  const bool is_exact = config.collectives == "exact" || config.deterministic_reduce > 0;
  return {.device = to_string(device),
          .devices = static_cast<int>(config.devices),
          .precision = config.precision,
          .strategy = config.strategy,
          .collectives = is_exact ? "exact" : "nccl",
          .numerics = {.loss_scale = scaler_options(config),
                       .loss_scale_is_fixed = config.loss_scale != "dynamic",
                       .fp8 = {.scaling = is_delayed ? Fp8Options::Scaling::kDelayed
                                                     : Fp8Options::Scaling::kCurrent},
                       .fp8_level = config.fp8_level,
                       .accumulation = kernels::parse_accumulation(config.matmul_numerics),
                       .tf32_rounding =
                           is_nearest ? kernels::Tf32::kNearest : kernels::Tf32::kTruncate},
          .split_batches = config.global_batch_size > 0,
          .state_dict_type = config.state_dict_type};
}

Config on_other_devices(Config config, int64_t devices, const dist::StrategyOptions& asked) {
  const int64_t batch = global_batch_of(config);
  dist::StrategyOptions& strategy = config.strategy;
  bool changes = asked.tensor_parallel > 0 || asked.pipeline_stages > 0;
  if (devices > 0) changes |= std::exchange(config.devices, devices) != devices;
  if (!asked.name.empty()) {
    const std::string before = dist::strategy_of(strategy, static_cast<int>(config.devices)).name;
    if (dist::named_here(asked).name != before) {
      changes = true;
      strategy = {};  // without the settings of the strategy before
    }
    strategy.name = asked.name;
    strategy = dist::named_here(strategy);
  }
  if (asked.tensor_parallel > 0) strategy.tensor_parallel = asked.tensor_parallel;
  if (asked.pipeline_stages > 0) strategy.pipeline_stages = asked.pipeline_stages;
  if (changes) config.global_batch_size = batch;
  validate(config);
  return config;
}

Config resumed_config(const RunOptions& options) {
  const io::Path step = find_checkpoint(options.resume);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kState);
  WEFT_CHECK(checkpoint.state.contains("config"), "resume: {} holds no configuration",
             step.string());
  const Config config = io::read_at(step.string(), [&] {
    const Config saved = config_from_json(io::field(checkpoint.state, "config"));
    validate(saved);
    return saved;
  });
  return on_other_devices(config, options.devices, options.strategy);
}

void check_model_is_shared(const Config& config) {
  dist::Sharing sharing = sharing_of(config);
  const bool is_cut = sharing.tensor > 1 || sharing.stages > 1;
  if (!is_cut || config.model == kGpt2) return;
  sharing.cuts_head = false;
  const nn::MetaScope meta;  // its form needs no memory
  std::unique_ptr<nn::Module> model;
  if (is_of_text(config)) {
    model = std::make_unique<models::Gpt>(models::gpt_config(config.model));
  } else {
    model = models::make_model(config.model);
  }
  dist::layout_of(*model, model->structure(), sharing);
}

int64_t global_batch_of(const Config& config) {
  if (config.global_batch_size > 0) return config.global_batch_size;
  return config.batch_size * sharing_of(config).data_devices();
}

TrainerOptions trainer_options(const Config& config, const RunOptions& options) {
  TrainerOptions result = {
      .fabric = fabric_options(config, options.device),
      .max_epochs = epoch_limit(config),
      .val_check_interval = config.val_check_interval,
      .num_sanity_val_steps = config.num_sanity_val_steps,
      .accumulate_grad_batches = config.accumulate,
      .gradient_clip_val = config.clip_norm,
      .track_grad_norm = config.loss_scale != "none",
      .nonfinite = config.nonfinite == "skip" ? Nonfinite::kSkip : Nonfinite::kStop,
      .log_every_n_steps = 1,
      .enable_progress_bar = true,
      .enable_table = false,
      .detect_anomaly = config.detect_anomaly,
      .capture = config.capture == "off"  ? Capture::kOff
                 : config.capture == "on" ? Capture::kOn
                                          : Capture::kAuto};
  if (config.max_steps > 0) result.max_steps = config.max_steps;
  if (const auto seconds = parse_duration(config.max_time)) {
    result.max_time = std::chrono::duration<double>(*seconds);
  }
  if (!config.limit_batches.is_zero()) result.limit_train_batches = config.limit_batches;
  const Limit evaluated = limit_of_evaluation(config);
  if (!evaluated.is_zero()) result.limit_val_batches = evaluated;
  if (config.ema > 0) {
    result.callbacks.push_back(std::make_shared<EmaWeightAveraging>(EmaOptions{config.ema}));
  }
  if (config.early_stopping > 0) {
    result.callbacks.push_back(std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = config.monitor,
                             .mode = is_more_better(config.monitor) ? Mode::kMax : Mode::kMin,
                             .patience = config.early_stopping,
                             .min_delta = config.min_delta}));
  }
  return result;
}

}  // namespace weft::train
