// The JSON of deepspeed.initialize(): batch rule, optimizer, scheduler, precision, ZeRO, clipping.
#include <fmt/ranges.h>

#include <cctype>
#include <cmath>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "io/section.h"
#include "optim/deepspeed_schedule.h"
#include "train/config_files/dialects.h"

namespace weft::train {
namespace {

/// Keys of zero_optimization that say how DeepSpeed goes about it.
constexpr const char* kTuning =
    "allgather_partitions allgather_bucket_size reduce_scatter reduce_bucket_size overlap_comm "
    "contiguous_gradients round_robin_gradients sub_group_size stage3_prefetch_bucket_size "
    "stage3_param_persistence_threshold stage3_model_persistence_threshold "
    "stage3_max_live_parameters stage3_max_reuse_distance "
    "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
    "stage3_module_granularity_threshold prefetch_bucket_size param_persistence_threshold "
    "model_persistence_threshold max_live_parameters max_reuse_distance "
    "gather_16bit_weights_on_model_save module_granularity_threshold "
    "use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential "
    "stage3_allgather_sequential partition_stream_chunk_size stage3_partition_stream_chunk_size "
    "mics_hierarchical_params_gather zero_hpz_partition_size zero_quantized_weights "
    "zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param "
    "use_multi_rank_bucket_allreduce override_module_apply log_trace_cache_warnings "
    "ignore_unused_parameters elastic_checkpoint load_from_fp32_weights memory_efficient_linear "
    "enable_sanity_checks pipeline_loading_checkpoint leaf_module cpu_offload_use_pin_memory "
    "save_muon_momentum_buffer_in_memory legacy_stage1";
/// Keys of what is not here.
constexpr const char* kAbsent =
    "steps_per_print log_level wall_clock_breakdown dump_state prescale_gradients "
    "gradient_predivide_factor sparse_gradients zero_allow_untested_optimizer "
    "zero_force_ds_cpu_optimizer comms_logger memory_breakdown disable_allgather allgather_size "
    "aio checkpoint nebula data_types dataloader_drop_last timers compile graph_harvesting "
    "vocabulary_size use_data_before_expert_parallelism seq_parallel_comm_data_type "
    "seq_parallel_communication_data_type";

std::vector<std::string> words_of(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Says that keys which are there change nothing, if any are.
void note(ConfigFile& file, const std::vector<std::string>& keys, const std::string& why) {
  if (!keys.empty()) file.notes.push_back(fmt::format("{}: {}", fmt::join(keys, ", "), why));
}

/// A switch that must be left as it is.
void expect(io::Section& section, const std::string& key, bool usual, const std::string& why) {
  if (section.boolean(key).value_or(usual) != usual) {
    section.fail(key, fmt::format("{}: {}", usual, why));
  }
}

/// By our names. What DeepSpeed calls Adam decays weights as AdamW does, unless it is told not to.
std::string optimizer_named(const std::string& type, io::Section& params) {
  const bool decouples = params.boolean("adam_w_mode").value_or(true);
  if (type == "Adam") return decouples ? "adamw" : "adam";
  std::string name = type;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

/// DeepSpeed's own values, under an optimizer by our name.
Config own_values(const std::string& optimizer) {
  Config usual = {
      .weight_decay = 0, .momentum = 0, .clip_norm = 0, .schedule = "constant", .warmup = 0};
  if (optimizer == "muon") {
    usual.lr = 0.02;
    usual.momentum = 0.95;
  }
  return usual;
}

/// Of what a file leaves out that names an optimizer.
void set_defaults(const io::Section& all, const io::Section& params, ConfigFile& file) {
  const nlohmann::json usual = to_json(own_values(file.settings.at("optimizer")));
  const auto set = [&](const char* key, bool is_there) {
    if (!is_there) file.defaults[key] = usual.at(key);
  };
  for (const char* key : {"momentum", "nesterov", "betas", "eps", "weight_decay"}) {
    set(key, params.names(key));
  }
  set("lr", params.names("lr") || params.names("muon_lr"));
  set("clip_norm", params.names("max_grad_norm") || all.names("gradient_clipping"));
  for (const char* key : {"schedule", "warmup"}) set(key, all.names("scheduler"));
}

void read_optimizer(const io::Section& all, io::Section section, ConfigFile& file) {
  const auto type = section.choice("type", {"Adam", "AdamW", "SGD", "Lamb", "Muon"});
  io::Section params = section.section("params");
  if (type) file.set("optimizer", optimizer_named(*type, params), section.path_of("type"));
  for (const char* key : {"lr", "momentum", "weight_decay"}) {
    file.set(key, params.number(key), params.path_of(key));
  }
  if (type == "Muon") {
    file.set("nesterov", true, section.path_of("type"));  // it has no other
    file.set("lr", params.number("muon_lr"), params.path_of("muon_lr"));
    note(file, {section.path_of("type")},
         "a matrix of R rows and C columns takes 0.2 sqrt(max(R, C)) of an orthogonal step, "
         "DeepSpeed's sqrt(max(1, R / C)): another lr is right");
    note(file, params.known({"adam_lr", "betas", "eps", "ns_method"}),
         "vectors take Muon's steps, too, of the signs of their momentum, and none of Adam's");
  } else {
    file.set("eps", params.number("eps"), params.path_of("eps"));
    file.set("betas", params.numbers("betas"), params.path_of("betas"));
  }
  file.set("nesterov", params.boolean("nesterov"), params.path_of("nesterov"));
  if (type == "Lamb") {
    const char* const why = "none: Lamb's trust ratio has no bounds here";
    if (params.has("max_coeff")) params.fail("max_coeff", why);
    if (params.number("min_coeff").value_or(0) != 0) params.fail("min_coeff", why);
    params.known({"max_coeff"});
    note(file, {section.path_of("type")},
         "the trust ratio is not kept within DeepSpeed's 0.01 to 10");
  }
  expect(params, "bias_correction", true, "moments are always corrected");
  expect(params, "amsgrad", false, "there is no AMSGrad");
  expect(params, "eps_inside_sqrt", false, "eps is added to the root");
  file.set("clip_norm", params.number("max_grad_norm"), params.path_of("max_grad_norm"));
  const bool is_torch = params.boolean("torch_adam").value_or(false);
  note(file, params.known({"torch_adam"}), "there is one Adam here");
  // PyTorch's AdamW decays weights by that unless it is told otherwise, DeepSpeed's does not.
  if (is_torch && file.settings.value("optimizer", "") == "adamw" &&
      !params.names("weight_decay")) {
    file.set("weight_decay", 0.01, params.path_of("torch_adam"));
  }
  params.known({"adam_w_mode"});
  params.finish();
  if (type) set_defaults(all, params, file);
  section.known({"legacy_fusion"});
  section.finish();
}

void read_scheduler(const nlohmann::json& scheduler, ConfigFile& file) {
  io::Section section(file.path, "scheduler", scheduler);
  const auto type = section.choice("type", optim::deepspeed_schedulers());
  if (!type) {
    section.known({"params"});
    section.finish();
    return;
  }
  io::Section params = section.section("params");
  const char* const peak = *type == "OneCycle" ? "cycle_max_lr" : "warmup_max_lr";
  std::optional<double> lr;
  if (*type != "WarmupCosineLR") lr = params.number(peak);
  if (*type == "WarmupDecayLR" && !params.names(peak)) {
    lr = 0.001;
    note(file, {params.path_of(peak)}, "it is not there, and 0.001, as DeepSpeed has it");
  }
  file.set("lr", lr, params.path_of(peak));
  file.is_lr_of_schedule = lr.has_value();
  if (*type == "OneCycle" && params.boolean("cycle_momentum").value_or(true) &&
      file.settings.value("optimizer", Config().optimizer) != "sgd") {
    note(file, {params.path_of("cycle_momentum")}, "momentum does not cycle here");
  }
  const std::string setting = scheduler.dump();
  optim::deepspeed_schedule(setting, {}, file.path);  // throws Error for what is wrong
  file.set("schedule", setting, "scheduler");
}

void read_precision(io::Section fp16, io::Section bf16, ConfigFile& file) {
  const bool is_fp16 = fp16.boolean("enabled").value_or(false);
  const bool is_bf16 = bf16.boolean("enabled").value_or(false);
  if (is_fp16 && is_bf16) fp16.fail("enabled", "false where bf16 is enabled");
  if (fp16.has("enabled") || bf16.has("enabled")) {
    const io::Section& said = is_bf16 || !fp16.has("enabled") ? bf16 : fp16;
    file.set("precision", is_bf16 ? "bf16" : is_fp16 ? "fp16" : "fp32", said.path_of("enabled"));
  }
  const auto scale = fp16.number("loss_scale");
  const auto power = fp16.number("initial_scale_power");
  if (power && (*power < 0 || *power > 126)) fp16.fail("initial_scale_power", "0 to 126");
  const auto window = fp16.whole_number("loss_scale_window");
  const auto hysteresis = fp16.whole_number("hysteresis");
  const auto least = fp16.number("min_loss_scale");
  if (fp16.boolean("consecutive_hysteresis").value_or(false)) {
    note(file, {fp16.path_of("consecutive_hysteresis")},
         "overflows count until the scale grows, whatever lies between them");
  }
  fp16.known({"auto_cast", "fused_mode"});
  bf16.known({"immediate_grad_update", "check_grad_overflow"});
  for (const auto& [section, keys] :
       {std::pair(&fp16, std::vector<std::string>{"fp16_master_weights_and_grads"}),
        std::pair(&bf16, std::vector<std::string>{"bf16_master_weights_and_grads",
                                                  "bf16_optimizer_states"})}) {
    for (const std::string& key : keys) {
      if (!section->boolean(key).value_or(false)) continue;
      note(file, {section->path_of(key)}, "what the optimizer steps stays in fp32");
    }
    section->finish();
  }
  // Whether "auto" comes to fp16 is said elsewhere: these are of fp16 alone.
  if (!is_fp16 && !fp16.is_auto("enabled")) return;
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
void read_msamp(io::Section section, ConfigFile& file) {
  const bool is_enabled = section.boolean("enabled").value_or(false);
  const auto level = section.choice("opt_level", {"O1", "O2", "O3"});
  section.finish();
  if (!is_enabled) return;
  file.set("precision", "fp8", section.path_of("enabled"));
  file.set("fp8_level", level.value_or("O1"), section.path_of("opt_level"));
}

/// cpu, or none: that of an offload_... section.
bool is_offloaded(io::Section section) {
  const auto device = section.choice("device", {"none", "cpu"});
  section.known({"pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "ratio",
                 "pipeline_read", "pipeline_write", "nvme_path", "super_offload",
                 "cpuadam_cores_perc"});
  section.finish();
  return device == "cpu";
}

void read_zero(io::Section section, ConfigFile& file) {
  const auto stage = section.whole_number("stage");
  if (stage && (*stage < 0 || *stage > 3)) section.fail("stage", "0, 1, 2 or 3");
  if (stage) {
    file.set("strategy", *stage == 0 ? "ddp" : "zero" + std::to_string(*stage),
             section.path_of("stage"));
  }
  // DeepSpeed's MiCS is hybrid sharding, by the size of a sharded copy.
  if (const auto size = section.whole_number("mics_shard_size"); size.value_or(0) > 0) {
    if (stage != 3) section.fail("mics_shard_size", "none but in stage 3");
    file.set("strategy", "hsdp", section.path_of("mics_shard_size"));
    file.set("shard_size", *size, section.path_of("mics_shard_size"));
  }
  // Each by its section, or by a switch of older files.
  const auto offloads = [&](const std::string& key, std::initializer_list<std::string> switches) {
    std::string by = is_offloaded(section.section(key)) ? key + ".device" : "";
    for (const std::string& old : switches) {
      if (section.boolean(old).value_or(false)) by = old;
    }
    return by;
  };
  const std::string parameters =
      offloads("offload_param", {"cpu_offload_param", "cpu_offload_params"});
  const std::string optimizer = offloads("offload_optimizer", {"cpu_offload"});
  if (!parameters.empty() && stage == 3) {
    file.set("cpu_offload", true, section.path_of(parameters));
  } else {
    if (!parameters.empty()) note(file, {section.path_of(parameters)}, kNotOffloaded);
    // Without a stage it is 0; what "auto" comes to is said elsewhere.
    const bool shards = stage.value_or(0) > 0 || section.is_auto("stage");
    if (!optimizer.empty() && shards) {
      file.set("offload_optimizer", true, section.path_of(optimizer));
    } else if (!optimizer.empty()) {
      note(file, {section.path_of(optimizer)}, kNotOffloaded);
    }
  }
  section.known({"zenflow"});
  if (section.has("zenflow")) {  // it has no "enabled": any section of it is on
    section.fail("zenflow", "null: there is nothing of the kind here");
  }
  note(file, section.known(words_of(kTuning)),
       "nothing here is tuned so; units are what travels, see --wrap and --resident-units");
  section.finish();
}

/// What trains in another way, where it is on. Its other keys are of no concern.
void read_absent(io::Section& all, const char* key, const std::string& instead, ConfigFile& file) {
  io::Section section = all.section(key);
  if (section.boolean("enabled").value_or(false)) section.fail("enabled", "false: " + instead);
  note(file, all.known({key}), "there is nothing of the kind here, and it is off");
}

/// A section without an "enabled": on from two ranks on.
void read_tensor_parallel(io::Section section) {
  for (const char* key : {"autotp_size", "tp_size"}) {
    if (section.whole_number(key).value_or(0) < 2) continue;
    section.fail(key, "0 or 1: --strategy fsdp+tp --tensor-parallel N splits layers here");
  }
}

}  // namespace

std::vector<std::string> read_deepspeed(const nlohmann::json& values, ConfigFile& file) {
  io::Section all(file.path, "", values);
  const auto positive = [&](const char* key) {
    const auto value = all.whole_number(key);
    if (value && *value <= 0) all.fail(key, "a positive whole number");
    return value.value_or(0);
  };
  file.batch = {.total = positive("train_batch_size"),
                .micro = positive("train_micro_batch_size_per_gpu"),
                .accumulation = positive("gradient_accumulation_steps")};
  if (all.has("optimizer")) read_optimizer(all, all.section("optimizer"), file);
  if (all.has("scheduler")) read_scheduler(values.at("scheduler"), file);
  file.set("clip_norm", all.number("gradient_clipping"), "gradient_clipping");
  read_precision(all.section("fp16"), all.section(all.has("bf16") ? "bf16" : "bfloat16"), file);
  if (all.has("msamp")) read_msamp(all.section("msamp"), file);
  if (all.has("zero_optimization")) read_zero(all.section("zero_optimization"), file);
  if (const auto dtype = all.choice("communication_data_type", {"fp32", "fp16", "bf16"})) {
    file.communication_dtype = *dtype;
    file.keys["communication_dtype"] = "communication_data_type";
  }
  if (all.choice("gradient_allreduce_op", {"mean", "sum"}) == "sum") {
    all.fail("gradient_allreduce_op", "mean: gradients are averaged over the ranks");
  }
  expect(all, "managed_gradient_accumulation", true,
         "gradient_accumulation_steps says which step() ends a step");
  note(file, all.known(words_of(kAbsent)), "there is nothing of the kind here");
  note(file, all.known({"activation_checkpointing"}), "--checkpoint-activations does it here");
  note(file, all.known({"tensorboard", "wandb", "comet", "csv_monitor"}),
       "weft train writes curves into its own directory");
  note(file, all.known({"flops_profiler"}), "weft profile and weft bench measure here");
  for (const auto& [key, instead] :
       {std::pair("sparse_attention", "attention is dense here"),
        std::pair("pipeline", "--strategy pipeline cuts a model into stages here"),
        std::pair("expert_parallel", "there are no experts here"),
        std::pair("compression_training", "there is nothing of the kind here")}) {
    if (!all.known({key}).empty()) all.fail(key, fmt::format("none: {}", instead));
  }
  for (const char* key : {"amp", "torch_autocast"}) {
    read_absent(all, key, "fp16.enabled or bf16.enabled is mixed precision here", file);
  }
  for (const char* key : {"curriculum_learning", "data_efficiency", "progressive_layer_drop",
                          "elasticity", "autotuning", "eigenvalue", "hybrid_engine"}) {
    read_absent(all, key, "there is nothing of the kind here", file);
  }
  read_tensor_parallel(all.section("tensor_parallel"));
  all.known({"optimizer", "scheduler", "zero_optimization", "msamp", "bf16", "bfloat16"});
  return all.finish();
}

Config deepspeed_config(const ConfigFile& file) {
  return with_file(own_values(file.settings.value("optimizer", "")), file);
}

}  // namespace weft::train
