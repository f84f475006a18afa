#include "cli/resolved_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "data/sets/sets.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/settings.h"
#include "dist/strategy/strategy_kind.h"
#include "models/registry.h"
#include "nn/layers.h"
#include "nn/meta.h"
#include "optim/registry.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

using nlohmann::json;

/// "fp32" as --compress-dtype and its like have it; empty of a dtype that they do not know.
std::string option_dtype(DType dtype) {
  return dtype == DType::f32    ? "fp32"
         : dtype == DType::bf16 ? "bf16"
         : dtype == DType::f16  ? "fp16"
                                : "";
}

bool model_takes(const std::string& model, const models::ModelOptions& options) {
  const nn::MetaScope meta;  // its form needs no memory
  try {
    models::make_model(model, options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// That of the model's normalisation of layers; nothing where it cannot be chosen.
std::optional<double> own_layer_norm_eps(const std::string& model) {
  if (!model_takes(model, {.layer_norm_eps = 1e-6})) return {};
  const nn::MetaScope meta;
  const auto made = models::make_model(model);
  for (const auto& [name, module] : made->named_modules()) {
    if (const auto* norm = dynamic_cast<const nn::LayerNorm*>(module)) return norm->eps;
  }
  return {};
}

class Resolver {
 public:
  Resolver(const train::Config& config, const Device& kind) : c_(config), kind_(kind) {
    all_.values = to_json(config);
  }

  ResolvedSettings resolve() {
    resolve_strategy();
    resolve_batch();
    resolve_validation();
    resolve_optimizer();
    resolve_precision();
    train::is_of_text(c_) ? resolve_text() : resolve_images();
    for (const auto& [key, what] : all_.unused) all_.values.erase(key);
    return std::move(all_);
  }

 private:
  void set(const char* key, json value) { all_.values[key] = std::move(value); }
  void leave_open(const std::string& key, const std::string& what) {
    all_.open[key] = what;
    all_.values[key] = nullptr;
  }
  /// `what` is said of the first reason.
  void leave_out(const std::string& key, const std::string& what) {
    all_.unused.emplace(key, what);
  }

  void resolve_strategy() {
    const dist::StrategyOptions& s = c_.strategy;
    const dist::StrategyKind& kind = dist::strategy_of(s, static_cast<int>(c_.devices));
    const dist::Sharing sharing = sharing_of(c_);
    const bool is_exact = c_.deterministic_reduce > 0;
    set("strategy", kind.name);
    if (s.shard_size == 0) set("shard_size", sharing.shard);
    if (s.tensor_parallel == 0) set("tensor_parallel", sharing.tensor);
    if (s.pipeline_stages == 0) set("pipeline_stages", sharing.stages);
    if (s.micro_batches == 0) set("micro_batches", sharing.micro_batches);
    if (s.bucket_mb == 0) set("bucket_mb", dist::DdpOptions().bucket_bytes >> 20);
    if (s.resident_units == 0) set("resident_units", dist::FsdpOptions().resident_units);
    const train::Precision& precision = train::find_precision(c_.precision);
    const std::string own = option_dtype(precision.parameters);
    for (const auto& [key, value] : {std::pair("compress_dtype", s.compress_dtype),
                                     {"reduce_dtype", s.reduce_dtype},
                                     {"buffer_dtype", s.buffer_dtype}}) {
      if (value.empty() && !own.empty()) set(key, own);
    }
    const bool has_narrow_weights = precision.rounds_weights_to() != DType::f32;
    if (s.param_dtype.empty() && !own.empty() && !has_narrow_weights) set("param_dtype", own);
    dist::for_each_setting([&](const dist::SettingText& text, auto) {
      std::string key = text.flag;
      std::ranges::replace(key, '-', '_');
      if (!contains(kind.settings, text.setting)) {
        leave_out(key, fmt::format("of strategy {}", dist::strategies_with(text.setting)));
      } else if (all_.values[key] == "") {
        leave_open(key, text.usual);
      }
    });
    if (!contains(kind.settings, dist::Settings::kSchedule)) {
      leave_out("pipeline_schedule",
                fmt::format("of strategy {}", dist::strategies_with(dist::Settings::kSchedule)));
    }
    if (s.shard_grad_op) leave_out("resident_units", "under shard-grad-op all units stay whole");
    if (is_exact) leave_out("micro_batches", "deterministic-reduce makes them");
    if (sharing.data_devices() == 1) leave_out("gradient_average", "for several devices");
    if (c_.collectives == "auto") set("collectives", is_exact ? "exact" : "nccl");
    if (c_.devices == 1 || kind_.type != DeviceType::cuda) {
      leave_out("collectives", "for several GPUs");
    }
    // What else stands in its way shows when the run begins.
    const bool can_capture =
        c_.devices == 1 && !is_exact && !c_.detect_anomaly && !precision.is_fp8();
    if (c_.capture == "auto") set("capture", can_capture ? "on" : "off");
    if (kind_.type != DeviceType::cuda) leave_out("capture", "for a GPU");
  }

  void resolve_batch() {
    const int64_t devices = sharing_of(c_).data_devices();
    if (c_.global_batch_size == 0) {
      set("global_batch_size", c_.batch_size * devices);
    } else if (c_.global_batch_size % devices == 0) {
      set("batch_size", c_.global_batch_size / devices);
    } else {
      leave_open("batch_size", "its part of global-batch-size");
    }
  }

  void resolve_validation() {
    if (c_.limit_val_batches.is_zero()) set("limit_val_batches", all_.values["limit_batches"]);
    if (c_.early_stopping > 0) return;
    leave_out("min_delta", "of early-stopping");
    if (c_.save_top_k == 0) leave_out("monitor", "of early-stopping and save-top-k");
  }

  void resolve_optimizer() {
    const optim::Options options = optim::optimizer_options(c_.optimizer);
    for (const auto& [key, option] : {std::pair("momentum", "momentum"),
                                      {"nesterov", "nesterov"},
                                      {"betas", "beta1"},
                                      {"eps", "eps"}}) {
      if (!options.contains(option)) leave_out(key, fmt::format("{} has none", c_.optimizer));
    }
  }

  void resolve_precision() {
    const train::Precision& precision = train::find_precision(c_.precision);
    const auto leave_all_out = [&](std::initializer_list<const char*> keys, const char* what) {
      for (const char* key : keys) leave_out(key, what);
    };
    if (!precision.scales_loss()) leave_out("loss_scale", "of precision fp16");
    if (!precision.scales_loss() || c_.loss_scale != "dynamic") {
      leave_all_out(
          {"initial_loss_scale", "loss_scale_window", "loss_scale_hysteresis", "min_loss_scale"},
          "of a dynamic loss-scale in precision fp16");
    }
    if (!precision.is_fp8()) leave_all_out({"fp8_scaling", "fp8_level"}, "of precision fp8");
    if (!precision.is_tf32()) leave_out("tf32_rounding", "of precision tf32");
  }

  void resolve_text() {
    for (const std::string& key : train::settings_of_images()) leave_out(key, "for images");
  }

  void resolve_images() {
    const bool has_weights = !c_.weights.empty();
    if (c_.image_size == 0 && has_weights) {
      leave_open("image_size", "the weights', or the data's own");
    } else if (c_.image_size == 0 && c_.data == "builtin") {
      set("image_size", data::draw_builtin_image(data::Part::kTest, 0).width);
    } else if (c_.image_size == 0) {
      leave_open("image_size", "the data's own, up to 224");
    }
    const std::optional<double> eps = own_layer_norm_eps(c_.model);
    if (!eps) {
      leave_out("layer_norm_eps", fmt::format("{} has none", c_.model));
    } else if (c_.layer_norm_eps == 0 && has_weights) {
      leave_open("layer_norm_eps", "the weights', or the model's own");
    } else if (c_.layer_norm_eps == 0) {
      set("layer_norm_eps", *eps);
    }
    if (!model_takes(c_.model, {.drop_path = 0.1})) {
      leave_out("drop_path", fmt::format("{} has none", c_.model));
    }
    if (!model_takes(c_.model, {.checkpoint_activations = true})) {
      leave_out("checkpoint_activations", fmt::format("{} has none", c_.model));
    }
    if (!has_weights) leave_out("interpolation", "of weights that training starts from");
    if (c_.augmentation.rand_augment == 0) leave_out("magnitude", "of rand-augment");
    if (!c_.augmentation.flip) leave_out("alternate_flip", "of flip");
  }

  const train::Config& c_;
  const Device kind_;
  ResolvedSettings all_;
};

}  // namespace

ResolvedSettings resolve(const train::Config& config, const Device& kind) {
  return Resolver(config, kind).resolve();
}

}  // namespace weft::cli
