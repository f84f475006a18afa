// The YAML of `accelerate config` (Accelerate 0.20 to 1.x): which ranks there are, in which
// precision, and what FSDP or DeepSpeed do among them.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "io/section.h"
#include "train/config_files/dialects.h"

namespace weft::train {
namespace {

void ignore(ConfigFile& file, const std::vector<std::string>& keys, const std::string& why) {
  if (keys.empty()) return;
  file.notes.push_back(fmt::format("{} {} nothing here: {}", fmt::join(keys, ", "),
                                   keys.size() > 1 ? "change" : "changes", why));
}

/// How much of a model is sharded, and among whom.
void read_sharding(io::Section& section, ConfigFile& file) {
  const std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                          "HYBRID_SHARD_ZERO2"};
  const auto shard = [&](const char* key, const std::string& name) {
    const std::string path = section.path_of(key);
    if (name == "NO_SHARD") {
      file.set("strategy", "ddp", path);
      return;
    }
    if (name.starts_with("HYBRID")) file.set("strategy", "hsdp", path);
    file.set("shard_grad_op", name == "SHARD_GRAD_OP" || name == "HYBRID_SHARD_ZERO2", path);
  };
  std::vector<std::string> choices = names;
  for (size_t i = 1; i <= names.size(); ++i) choices.push_back(std::to_string(i));
  if (const auto sharding = section.choice("fsdp_sharding_strategy", choices)) {
    const auto number = std::ranges::find(choices, *sharding) - choices.begin();
    shard("fsdp_sharding_strategy", names[number % names.size()]);
  }
  // Later files say it here: of FSDP 1 by the same names, of FSDP 2 by yes or no.
  choices = names;
  choices.insert(choices.end(), {"true", "false"});
  if (const auto name = section.choice("fsdp_reshard_after_forward", choices)) {
    shard("fsdp_reshard_after_forward", *name == "true"    ? "FULL_SHARD"
                                        : *name == "false" ? "SHARD_GRAD_OP"
                                                           : *name);
  }
}

/// What is unsharded together, and when.
void read_units(io::Section& section, ConfigFile& file) {
  const auto set = [&](const char* key, const auto& value, const char* its) {
    file.set(key, value, section.path_of(its));
  };
  const auto classes = section.text("fsdp_transformer_layer_cls_to_wrap");
  const auto least = section.whole_number("fsdp_min_num_params");
  const std::string policy =
      section
          .choice("fsdp_auto_wrap_policy", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"})
          .value_or("TRANSFORMER_BASED_WRAP");
  if (policy == "SIZE_BASED_WRAP") {
    if (least && *least < 1) section.fail("fsdp_min_num_params", "1 or more");
    set("wrap", std::to_string(least.value_or(100'000'000)), "fsdp_min_num_params");
  } else if (policy == "NO_WRAP") {
    set("wrap", std::to_string(std::numeric_limits<int64_t>::max()), "fsdp_auto_wrap_policy");
  } else {
    set("wrap", classes, "fsdp_transformer_layer_cls_to_wrap");
  }
  for (const char* key : {"fsdp_backward_prefetch", "fsdp_backward_prefetch_policy"}) {
    const auto prefetch = section.choice(key, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
    if (prefetch) set("no_prefetch", *prefetch == "NO_PREFETCH", key);
  }
}

void read_fsdp(io::Section section, ConfigFile& file) {
  const auto set = [&](const char* key, const auto& value, const char* its) {
    file.set(key, value, section.path_of(its));
  };
  file.set("strategy", "fsdp", "distributed_type");
  section.whole_number("fsdp_version");
  read_sharding(section, file);
  if (file.settings.at("strategy") == "ddp") {
    // Accelerate writes these keys whatever the sharding strategy is.
    ignore(file,
           section.known({"fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap",
                          "fsdp_min_num_params", "fsdp_backward_prefetch",
                          "fsdp_backward_prefetch_policy"}),
           "NO_SHARD leaves parameters whole");
  } else {
    read_units(section, file);
  }
  set("cpu_offload", section.boolean("fsdp_offload_params"), "fsdp_offload_params");
  set("checkpoint_activations", section.boolean("fsdp_activation_checkpointing"),
      "fsdp_activation_checkpointing");
  section.known({"fsdp_ignored_modules"});
  if (section.has("fsdp_ignored_modules")) {
    section.fail("fsdp_ignored_modules", "null: every module is sharded");
  }
  if (const auto type = section.choice(
          "fsdp_state_dict_type", {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"})) {
    set("state_dict_type", *type == "FULL_STATE_DICT" ? "full" : "sharded", "fsdp_state_dict_type");
  }
  ignore(file,
         section.known({"fsdp_cpu_ram_efficient_loading", "fsdp_forward_prefetch",
                        "fsdp_sync_module_states", "fsdp_use_orig_params"}),
         "it is always done");
  section.finish();
}

void read_deepspeed_config(io::Section section, ConfigFile& file) {
  std::optional<int64_t> usual_stage = 2;
  const std::string path = section.text("deepspeed_config_file").value_or("none");
  if (path != "none") {
    usual_stage.reset();  // the file's
    const auto beside = std::filesystem::path(file.path).parent_path() / path;
    ConfigFile inner;
    inner.path = beside.string();
    read_deepspeed(parse_values(inner.path), inner);
    for (const auto& [key, value] : inner.settings.items()) {
      file.set(key, value, inner.path + ": " + inner.keys.at(key));
    }
    file.batch = inner.batch;
    file.defaults = inner.defaults;
    if (!inner.communication_dtype.empty()) {
      file.communication_dtype = inner.communication_dtype;
      file.keys["communication_dtype"] = inner.path + ": " + inner.keys.at("communication_dtype");
    }
    file.notes.insert(file.notes.end(), inner.notes.begin(), inner.notes.end());
  }
  const auto set = [&](const char* key, const auto& value, const char* its) {
    file.set(key, value, section.path_of(its));
  };
  const auto said_stage = section.whole_number("zero_stage");
  if (const auto stage = said_stage ? said_stage : usual_stage) {
    if (*stage < 0 || *stage > 3) section.fail("zero_stage", "0, 1, 2 or 3");
    set("strategy", *stage == 0 ? "ddp" : "zero" + std::to_string(*stage), "zero_stage");
  }
  set("accumulate", section.whole_number("gradient_accumulation_steps"),
      "gradient_accumulation_steps");
  set("clip_norm", section.number("gradient_clipping"), "gradient_clipping");
  for (const char* key : {"offload_param_nvme_path", "offload_optimizer_nvme_path"}) {
    if (section.text(key).value_or("none") != "none") {
      section.fail(key, "none: nothing is offloaded to NVMe");
    }
  }
  auto parameters = section.choice("offload_param_device", {"none", "cpu"});
  const auto optimizer = section.choice("offload_optimizer_device", {"none", "cpu"});
  const std::string strategy = file.settings.value("strategy", "ddp");
  if (parameters == "cpu" && strategy != "zero3") {
    parameters.reset();
    ignore(file, {section.path_of("offload_param_device")}, kNotOffloaded);
  }
  if (parameters) set("cpu_offload", *parameters == "cpu", "offload_param_device");
  if (optimizer && parameters != "cpu") {
    set("offload_optimizer", *optimizer == "cpu", "offload_optimizer_device");
  }
  // Also where deepspeed_config_file says it and leaves the stage to this file.
  if (strategy == "ddp" && file.settings.value("offload_optimizer", false)) {
    ignore(file, {file.keys.at("offload_optimizer")}, kNotOffloaded);
    file.settings.erase("offload_optimizer");
    file.keys.erase("offload_optimizer");
  }
  // Where the precision comes to fp16 and DeepSpeed's file has no section of it, Accelerate adds
  // one that leaves the loss scale to DeepSpeed.
  ConfigFile unsaid;
  read_deepspeed({{"fp16", {{"enabled", "auto"}}}}, unsaid);
  file.defaults.update(unsaid.settings);
  ignore(file,
         section.known({"deepspeed_hostfile", "deepspeed_multinode_launcher",
                        "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"}),
         "the launcher knows the hosts");
  if (section.boolean("enable_msamp").value_or(false)) {
    set("fp8_level", section.choice("msamp_opt_level", {"O1", "O2", "O3"}).value_or("O1"),
        "msamp_opt_level");
  }
  ignore(file, section.known({"msamp_opt_level"}), "enable_msamp is not true");
  ignore(file, section.known({"zero3_init_flag", "zero3_save_16bit_model"}),
         "a model is built part by part and saved whole");
  ignore(file, section.known({"deepspeed_moe_layer_cls_names"}), "there are no experts here");
  section.finish();
}

/// Ranks by the dimensions of a mesh, of which Weft has those of its strategies: one of shards
/// alone is fsdp's.
void read_parallelism(io::Section& all, const char* key, const ConfigFile& file) {
  const nlohmann::json* const sizes = all.value(key);
  all.known({key});
  if (!sizes || sizes->empty()) return;
  bool fits = sizes->is_object();
  for (const auto& [name, size] : sizes->items()) {
    const bool is_of_fsdp = name.ends_with("dp_shard_size") &&
                            file.settings.value("strategy", "") == "fsdp" &&
                            size == file.settings.value("devices", nlohmann::json());
    fits = fits && (!size.is_number() || size == 1 || is_of_fsdp);
  }
  if (fits) return;
  all.fail(key,
           "sizes of 1, but under FSDP's FULL_SHARD or SHARD_GRAD_OP a dp_shard_size of "
           "num_processes: --strategy and --tensor-parallel shape the mesh here");
}

void read_launcher(io::Section& all, ConfigFile& file) {
  io::Section mpirun = all.section("mpirun_config");
  for (io::Section* section : {&mpirun, &all}) {  // older files have it at the top
    if (const auto hosts = section->text("mpirun_hostfile")) {
      file.hostfile = *hosts;
      file.keys["hosts"] = "mpirun_hostfile";
    }
    ignore(file, section->known({"mpirun_ccl"}), "Weft's own collectives add");
  }
  mpirun.finish();
  file.machines = all.whole_number("num_machines").value_or(1);
  if (file.machines < 1) all.fail("num_machines", "1 or more");
  if (file.machines > 1) {
    const bool is_named = !file.hostfile.empty();
    file.notes.push_back(
        fmt::format("num_machines: {} hosts, {}", file.machines,
                    is_named ? "which mpirun_hostfile names"
                             : "to be named by --hosts, or each with a launcher of its own"));
  }
  if (all.boolean("use_cpu").value_or(false)) {
    file.device = "cpu";
    file.keys["device"] = "use_cpu";
  }
  ignore(file,
         all.known({"machine_rank", "main_process_ip", "main_process_port", "rdzv_backend",
                    "same_network", "gpu_ids", "enable_cpu_affinity", "main_training_function",
                    "command", "command_file", "commands"}),
         "the launcher says it");
}

}  // namespace

std::vector<std::string> read_accelerate(const nlohmann::json& values, ConfigFile& file) {
  io::Section all(file.path, "", values);
  all.choice("compute_environment", {"LOCAL_MACHINE"});
  const std::vector<std::string> types = {"NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED"};
  const std::string type = all.choice("distributed_type", types).value_or("NO");
  if (type == "NO") file.set("strategy", "auto", "distributed_type");
  if (type.starts_with("MULTI")) file.set("strategy", "ddp", "distributed_type");
  io::Section fsdp = all.section("fsdp_config"), deepspeed = all.section("deepspeed_config");
  for (const auto& [owner, section] :
       {std::pair("FSDP", "fsdp_config"), std::pair("DEEPSPEED", "deepspeed_config")}) {
    if (type != owner) {
      ignore(file, all.known({section}), fmt::format("distributed_type is not {}", owner));
    }
  }
  if (type == "FSDP") read_fsdp(fsdp, file);
  if (type == "DEEPSPEED") read_deepspeed_config(deepspeed, file);
  if (const auto precision = all.choice("mixed_precision", {"no", "fp16", "bf16", "fp8"})) {
    file.set("precision", *precision == "no" ? "fp32" : *precision, "mixed_precision");
  } else if (all.boolean("fp16").value_or(false)) {  // before there was mixed_precision
    file.set("precision", "fp16", "fp16");
  }
  all.known({"fp16"});
  io::Section fp8 = all.section("fp8_config");
  const auto level = fp8.choice("opt_level", {"O1", "O2", "O3"});
  const auto backend = fp8.choice("backend", {"MSAMP", "TE", "AO"});
  const bool is_msamp = backend.value_or("MSAMP") == "MSAMP";
  const bool is_fp8 = file.settings.value("precision", "") == "fp8";
  if (is_msamp && level) {
    file.set("fp8_level", *level, fp8.path_of("opt_level"));
  } else if (is_msamp && backend && is_fp8 && !file.settings.contains("fp8_level")) {
    file.set("fp8_level", "O2", fp8.path_of("backend"));  // Accelerate's own
  }
  if (!is_msamp) ignore(file, fp8.known({"opt_level"}), "it is MSAMP's");
  ignore(file,
         fp8.known({"margin", "interval", "fp8_format", "amax_history_length", "amax_history_len",
                    "amax_compute_algorithm", "amax_compute_algo", "override_linear_precision",
                    "use_autocast_during_eval", "enable_fsdp_float8_all_gather", "pad_inner_dim"}),
         "--fp8-scaling says how tensors are scaled");
  fp8.finish();
  if (const auto ranks = all.whole_number("num_processes"); ranks == -1) {
    file.set_all_devices("num_processes");
  } else {
    file.set("devices", ranks, "num_processes");
  }
  file.set("accumulate", all.whole_number("gradient_accumulation_steps"),
           "gradient_accumulation_steps");
  // Of DeepSpeed's batch rule it is a part.
  if (file.batch.total > 0 || file.batch.accumulation > 0) {
    file.batch.accumulation = file.settings.value("accumulate", file.batch.accumulation);
  }
  read_launcher(all, file);
  for (const char* key : {"tp_config", "parallelism_config"}) read_parallelism(all, key, file);
  all.known({"debug"});
  for (const char* key : {"tpu_use_cluster", "tpu_use_sudo"}) {
    if (all.boolean(key).value_or(false)) all.fail(key, "false: there are no TPUs here");
  }
  if (all.boolean("downcast_bf16").value_or(false)) {
    ignore(file, {"downcast_bf16"}, "there are no TPUs here");
  }
  ignore(file,
         all.known({"tpu_name", "tpu_zone", "tpu_vm", "tpu_env", "ipex_config", "dynamo_config",
                    "dynamo_backend", "megatron_lm_config"}),
         "there is nothing of the kind");
  const std::vector<std::string>& known = all.finish();
  if (!values.empty() && !all.has("distributed_type")) {
    all.fail("distributed_type", fmt::format("one of {}", fmt::join(types, ", ")));
  }
  return known;
}

}  // namespace weft::train
