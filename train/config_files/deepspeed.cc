// The JSON of deepspeed.initialize(): batch rule, optimizer, scheduler, precision, ZeRO, clipping.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "dist/strategy/strategy_kind.h"
#include "train/config_files/dialects.h"
#include "train/config_files/section.h"

namespace weft::train {
namespace {

/// Sections and keys that a file of DeepSpeed's is known by.
constexpr const char* kOwn[] = {"train_batch_size",
                                "train_micro_batch_size_per_gpu",
                                "gradient_accumulation_steps",
                                "gradient_clipping",
                                "zero_optimization",
                                "zero_allow_untested_optimizer",
                                "steps_per_print",
                                "fp16",
                                "bf16"};

void read_optimizer(Section section, ConfigFile& file) {
  const auto type = section.choice("type", {"Adam", "AdamW", "SGD"});
  if (type) {
    std::string name = *type;
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    file.set("optimizer", name, section.path_of("type"));
  }
  Section params = section.section("params");
  for (const auto& [theirs, ours] :
       {std::pair("lr", "lr"), std::pair("momentum", "momentum"), std::pair("eps", "eps"),
        std::pair("weight_decay", "weight_decay")}) {
    file.set(ours, params.number(theirs), params.path_of(theirs));
  }
  file.set("betas", params.numbers("betas"), params.path_of("betas"));
  file.set("nesterov", params.boolean("nesterov"), params.path_of("nesterov"));
  params.known({"torch_adam", "adam_w_mode", "bias_correction"});
  params.finish();
  section.known({"legacy_fusion"});
  section.finish();
}

void read_scheduler(Section section, ConfigFile& file) {
  const auto type =
      section.choice("type", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"});
  if (!type) {
    section.known({"params"});
    return section.finish();
  }
  Section params = section.section("params");
  const auto set = [&](const char* key, const auto& value, const Section& at, const char* its) {
    file.set(key, value, at.path_of(its));
  };
  const auto positive = [&](const char* key) {
    const auto value = params.number(key);
    if (value && *value <= 0) params.fail(key, "a positive number");
    return value;
  };
  if (*type == "OneCycle") {
    set("schedule", "one-cycle", section, "type");
    set("lr", positive("cycle_max_lr"), params, "cycle_max_lr");
    const auto rise = positive("cycle_first_step_size"), fall = positive("cycle_second_step_size");
    if (rise) {
      set("warmup", *rise / (*rise + fall.value_or(*rise)), params, "cycle_first_step_size");
    }
    if (!params
             .known({"cycle_min_lr", "decay_lr_rate", "decay_step_size", "cycle_min_mom",
                     "cycle_max_mom", "decay_mom_rate", "cycle_first_stair_count",
                     "cycle_second_stair_count", "cycle_momentum", "last_batch_iteration"})
             .empty()) {
      file.notes.push_back(section.path_of("params") +
                           ": of a cycle its peak and its rise are taken over");
    }
  } else {
    set("schedule", *type == "WarmupCosineLR" ? "cosine" : "constant", section, "type");
    if (*type == "WarmupDecayLR") {
      file.notes.push_back(section.path_of("type") + ": the rate stays where it does not rise");
    }
    if (const auto lr = positive("warmup_max_lr")) set("lr", *lr, params, "warmup_max_lr");
    const auto steps = params.number("warmup_num_steps"), total = positive("total_num_steps");
    if (steps && total) {
      if (*steps < 0 || *steps >= *total) {
        params.fail("warmup_num_steps", "fewer steps than total_num_steps");
      }
      set("warmup", *steps / *total, params, "warmup_num_steps");
    } else if (steps) {
      file.notes.push_back(params.path_of("warmup_num_steps") +
                           " changes nothing: here warmup is a share of all steps; see --warmup");
    }
    if (!params
             .known({"warmup_min_lr", "warmup_type", "warmup_min_ratio", "cos_min_ratio",
                     "last_batch_iteration"})
             .empty()) {
      file.notes.push_back(section.path_of("params") +
                           ": of a schedule its peak and its warmup are taken over");
    }
  }
  params.finish();
  section.finish();
}

void read_precision(Section fp16, Section bf16, ConfigFile& file) {
  const bool is_fp16 = fp16.boolean("enabled").value_or(false);
  const bool is_bf16 = bf16.boolean("enabled").value_or(false);
  if (is_fp16 && is_bf16) fp16.fail("enabled", "false where bf16 is enabled");
  if (fp16.has("enabled") || bf16.has("enabled")) {
    const Section& said = is_bf16 || !fp16.has("enabled") ? bf16 : fp16;
    file.set("precision", is_bf16 ? "bf16" : is_fp16 ? "fp16" : "fp32", said.path_of("enabled"));
  }
  const auto scale = fp16.number("loss_scale");
  const auto power = fp16.number("initial_scale_power");
  if (power && (*power < 0 || *power > 126)) fp16.fail("initial_scale_power", "0 to 126");
  const auto window = fp16.whole_number("loss_scale_window");
  const auto hysteresis = fp16.whole_number("hysteresis");
  const auto least = fp16.number("min_loss_scale");
  fp16.known({"auto_cast", "consecutive_hysteresis", "fp16_master_weights_and_grads"});
  fp16.finish();
  bf16.known({"immediate_grad_update", "check_grad_overflow"});
  bf16.finish();
  if (!is_fp16) return;
  const auto set = [&](const char* key, const nlohmann::json& value, const char* its) {
    file.set(key, value, fp16.path_of(its));
  };
  if (scale && *scale != 0) set("loss_scale", fmt::format("{}", *scale), "loss_scale");
  // With DeepSpeed's own defaults.
  set("initial_loss_scale", std::exp2(power.value_or(16)), "initial_scale_power");
  set("loss_scale_window", window.value_or(1000), "loss_scale_window");
  set("loss_scale_hysteresis", hysteresis.value_or(2), "hysteresis");
  set("min_loss_scale", least.value_or(1), "min_loss_scale");
}

/// MS-AMP's own section, which makes the precision fp8.
void read_msamp(Section section, ConfigFile& file) {
  const bool is_enabled = section.boolean("enabled").value_or(false);
  const auto level = section.choice("opt_level", {"O1", "O2", "O3"});
  section.finish();
  if (!is_enabled) return;
  file.set("precision", "fp8", section.path_of("enabled"));
  file.set("fp8_level", level.value_or("O1"), section.path_of("opt_level"));
}

/// cpu, or none: that of an offload_... section.
bool is_offloaded(Section section) {
  const auto device = section.choice("device", {"none", "cpu"});
  section.known({"pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "ratio",
                 "pipeline_read", "pipeline_write", "nvme_path"});
  section.finish();
  return device == "cpu";
}

void read_zero(Section section, ConfigFile& file) {
  const auto stage = section.whole_number("stage");
  if (stage && (*stage < 0 || *stage > 3)) section.fail("stage", "0, 1, 2 or 3");
  if (stage) {
    file.set("strategy", *stage == 0 ? "ddp" : "zero" + std::to_string(*stage),
             section.path_of("stage"));
  }
  const bool parameters = is_offloaded(section.section("offload_param"));
  const bool optimizer = is_offloaded(section.section("offload_optimizer"));
  if (parameters && stage != 3) section.fail("offload_param", "none but in stage 3");
  if (parameters) file.set("cpu_offload", true, section.path_of("offload_param.device"));
  if (optimizer && !parameters) {
    file.set("offload_optimizer", true, section.path_of("offload_optimizer.device"));
  }
  const std::vector<std::string> tuning =
      section.known({"allgather_partitions",
                     "allgather_bucket_size",
                     "reduce_scatter",
                     "reduce_bucket_size",
                     "overlap_comm",
                     "contiguous_gradients",
                     "round_robin_gradients",
                     "sub_group_size",
                     "stage3_prefetch_bucket_size",
                     "stage3_param_persistence_threshold",
                     "stage3_model_persistence_threshold",
                     "stage3_max_live_parameters",
                     "stage3_max_reuse_distance",
                     "stage3_gather_16bit_weights_on_model_save",
                     "stage3_gather_fp16_weights_on_model_save",
                     "ignore_unused_parameters",
                     "elastic_checkpoint",
                     "load_from_fp32_weights",
                     "memory_efficient_linear",
                     "cpu_offload_params",
                     "cpu_offload_use_pin_memory",
                     "legacy_stage1"});
  if (const auto old = section.boolean("cpu_offload"); old.value_or(false)) {
    file.set("offload_optimizer", true, section.path_of("cpu_offload"));
  }
  if (!tuning.empty()) {
    file.notes.push_back(fmt::format(
        "{}: nothing here is tuned so; units are what travels, see --wrap and --resident-units",
        fmt::join(tuning, ", ")));
  }
  section.finish();
}

}  // namespace

bool is_deepspeed(const nlohmann::json& values) {
  return std::ranges::any_of(kOwn, [&](const char* key) { return values.contains(key); });
}

void read_deepspeed(const nlohmann::json& values, ConfigFile& file) {
  Section all(file.path, "", values);
  const auto positive = [&](const char* key) {
    const auto value = all.whole_number(key);
    if (value && *value <= 0) all.fail(key, "a positive whole number");
    return value.value_or(0);
  };
  file.batch = {.total = positive("train_batch_size"),
                .micro = positive("train_micro_batch_size_per_gpu"),
                .accumulation = positive("gradient_accumulation_steps")};
  file.set("clip_norm", all.number("gradient_clipping"), "gradient_clipping");
  if (all.has("optimizer")) read_optimizer(all.section("optimizer"), file);
  if (all.has("scheduler")) {
    read_scheduler(all.section("scheduler"), file);
    const nlohmann::json& scheduler = values.at("scheduler");
    if (scheduler.contains("type")) {
      file.schedule =
          deepspeed_schedule(file.path, scheduler, file.settings.value("lr", Config().lr));
    }
  }
  read_precision(all.section("fp16"), all.section("bf16"), file);
  if (all.has("msamp")) read_msamp(all.section("msamp"), file);
  if (all.has("zero_optimization")) read_zero(all.section("zero_optimization"), file);
  const dist::StrategyKind& strategy =
      dist::find_strategy(file.settings.value("strategy", std::string("ddp")));
  file.set(contains(strategy.settings, dist::Settings::kMixedPrecision) ? "reduce_dtype"
                                                                        : "compress_dtype",
           all.choice("communication_data_type", {"fp32", "fp16", "bf16"}),
           "communication_data_type");
  const std::vector<std::string> others = all.known({"steps_per_print",
                                                     "wall_clock_breakdown",
                                                     "dump_state",
                                                     "prescale_gradients",
                                                     "gradient_predivide_factor",
                                                     "sparse_gradients",
                                                     "zero_allow_untested_optimizer",
                                                     "zero_force_ds_cpu_optimizer",
                                                     "activation_checkpointing",
                                                     "flops_profiler",
                                                     "tensorboard",
                                                     "wandb",
                                                     "csv_monitor",
                                                     "comms_logger",
                                                     "memory_breakdown",
                                                     "disable_allgather",
                                                     "aio",
                                                     "checkpoint",
                                                     "data_types",
                                                     "amp",
                                                     "seq_parallel_communication_data_type"});
  all.known({"optimizer", "scheduler", "zero_optimization", "msamp"});
  if (!others.empty()) {
    file.notes.push_back(
        fmt::format("{}: there is nothing of the kind here", fmt::join(others, ", ")));
  }
  all.finish();
}

}  // namespace weft::train
