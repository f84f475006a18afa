// The YAML of `accelerate config` (Accelerate 0.20 to 1.x): which ranks there are, in which
// precision, and what FSDP or DeepSpeed do among them.
#include <fmt/ranges.h>

#include <filesystem>
#include <limits>

#include "core/error.h"
#include "train/config_files/dialects.h"
#include "train/config_files/section.h"

namespace weft::train {
namespace {

void ignore(ConfigFile& file, const std::vector<std::string>& keys, const std::string& why) {
  if (keys.empty()) return;
  file.notes.push_back(fmt::format("{} {} nothing here: {}", fmt::join(keys, ", "),
                                   keys.size() > 1 ? "change" : "changes", why));
}

void read_fsdp(Section section, ConfigFile& file) {
  const auto set = [&](const char* key, const auto& value, const char* its) {
    file.set(key, value, section.path_of(its));
  };
  set("strategy", "fsdp", "fsdp_sharding_strategy");
  section.whole_number("fsdp_version");
  const std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                          "HYBRID_SHARD_ZERO2"};
  std::vector<std::string> choices = names;
  for (size_t i = 1; i <= names.size(); ++i) choices.push_back(std::to_string(i));
  if (auto sharding = section.choice("fsdp_sharding_strategy", choices)) {
    const auto number = std::ranges::find(choices, *sharding) - choices.begin();
    const std::string& name = names[number % names.size()];
    if (name == "NO_SHARD") set("strategy", "ddp", "fsdp_sharding_strategy");
    if (name.starts_with("HYBRID")) set("strategy", "hsdp", "fsdp_sharding_strategy");
    if (name == "SHARD_GRAD_OP" || name == "HYBRID_SHARD_ZERO2") {
      set("shard_grad_op", true, "fsdp_sharding_strategy");
    }
  }
  // FSDP 2 says the same so; some versions write a sharding's name there.
  if (const auto text = section.choice("fsdp_reshard_after_forward",
                                       {"true", "false", "FULL_SHARD", "SHARD_GRAD_OP"})) {
    set("shard_grad_op", *text == "false" || *text == "SHARD_GRAD_OP",
        "fsdp_reshard_after_forward");
  }
  const auto classes = section.text("fsdp_transformer_layer_cls_to_wrap");
  const auto least = section.whole_number("fsdp_min_num_params");
  const std::string policy =
      section
          .choice("fsdp_auto_wrap_policy", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"})
          .value_or("TRANSFORMER_BASED_WRAP");
  if (policy == "SIZE_BASED_WRAP") {
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
  set("cpu_offload", section.boolean("fsdp_offload_params"), "fsdp_offload_params");
  set("checkpoint_activations", section.boolean("fsdp_activation_checkpointing"),
      "fsdp_activation_checkpointing");
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

void read_deepspeed_config(Section section, ConfigFile& file) {
  if (const auto path = section.text("deepspeed_config_file")) {
    const auto beside = std::filesystem::path(file.path).parent_path() / *path;
    ConfigFile inner;
    inner.path = beside.string();
    read_deepspeed(parse_values(inner.path), inner);
    for (const auto& [key, value] : inner.settings.items()) {
      file.set(key, value, inner.path + ": " + inner.keys.at(key));
    }
    file.batch = inner.batch;
    file.notes.insert(file.notes.end(), inner.notes.begin(), inner.notes.end());
  }
  const auto set = [&](const char* key, const auto& value, const char* its) {
    file.set(key, value, section.path_of(its));
  };
  if (const auto stage = section.whole_number("zero_stage")) {
    if (*stage < 0 || *stage > 3) section.fail("zero_stage", "0, 1, 2 or 3");
    set("strategy", *stage == 0 ? "ddp" : "zero" + std::to_string(*stage), "zero_stage");
  }
  set("accumulate", section.whole_number("gradient_accumulation_steps"),
      "gradient_accumulation_steps");
  set("clip_norm", section.number("gradient_clipping"), "gradient_clipping");
  const auto parameters = section.choice("offload_param_device", {"none", "cpu"});
  const auto optimizer = section.choice("offload_optimizer_device", {"none", "cpu"});
  if (parameters) set("cpu_offload", *parameters == "cpu", "offload_param_device");
  if (optimizer && parameters != "cpu") {
    set("offload_optimizer", *optimizer == "cpu", "offload_optimizer_device");
  }
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
  section.finish();
}

}  // namespace

bool is_accelerate(const nlohmann::json& values) {
  return values.contains("compute_environment") || values.contains("distributed_type");
}

void read_accelerate(const nlohmann::json& values, ConfigFile& file) {
  Section all(file.path, "", values);
  all.choice("compute_environment", {"LOCAL_MACHINE"});
  const std::string type =
      all.choice("distributed_type", {"NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED"})
          .value_or("NO");
  if (type == "NO") file.set("strategy", "auto", "distributed_type");
  if (type.starts_with("MULTI")) file.set("strategy", "ddp", "distributed_type");
  Section fsdp = all.section("fsdp_config"), deepspeed = all.section("deepspeed_config");
  if (type == "FSDP") read_fsdp(fsdp, file);
  if (type == "DEEPSPEED") read_deepspeed_config(deepspeed, file);
  if (const auto precision = all.choice("mixed_precision", {"no", "fp16", "bf16", "fp8"})) {
    file.set("precision", *precision == "no" ? "fp32" : *precision, "mixed_precision");
  }
  Section fp8 = all.section("fp8_config");
  const auto level = fp8.choice("opt_level", {"O1", "O2", "O3"});
  const bool is_msamp = fp8.choice("backend", {"MSAMP", "TE", "AO"}).value_or("MSAMP") == "MSAMP";
  if (is_msamp) file.set("fp8_level", level, fp8.path_of("opt_level"));
  if (!is_msamp) ignore(file, fp8.known({"opt_level"}), "it is MSAMP's");
  ignore(file,
         fp8.known({"margin", "interval", "fp8_format", "amax_history_length",
                    "amax_compute_algorithm", "override_linear_precision",
                    "use_autocast_during_eval"}),
         "--fp8-scaling says how tensors are scaled");
  fp8.finish();
  file.set("devices", all.whole_number("num_processes"), "num_processes");
  file.set("accumulate", all.whole_number("gradient_accumulation_steps"),
           "gradient_accumulation_steps");
  Section mpirun = all.section("mpirun_config");
  std::vector<std::string> mpi = mpirun.known({"mpirun_hostfile", "mpirun_ccl"});
  mpirun.finish();
  const std::vector<std::string> older = all.known({"mpirun_hostfile", "mpirun_ccl"});
  mpi.insert(mpi.end(), older.begin(), older.end());
  ignore(file, mpi, "weft train starts ranks on this host; mpirun -hostfile weft train elsewhere");
  ignore(file,
         all.known({"num_machines", "machine_rank", "main_process_ip", "main_process_port",
                    "rdzv_backend", "same_network", "gpu_ids", "enable_cpu_affinity",
                    "main_training_function", "use_cpu"}),
         "the launcher says it, and --device");
  all.known({"debug"});
  if (all.choice("downcast_bf16", {"no", "false"})) all.known({"downcast_bf16"});
  for (const char* key : {"tpu_use_cluster", "tpu_use_sudo"}) {
    if (all.boolean(key).value_or(false)) all.fail(key, "false: there are no TPUs here");
  }
  ignore(file, all.known({"tpu_env", "ipex_config", "dynamo_config", "dynamo_backend"}),
         "there is nothing of the kind");
  all.finish();
}

}  // namespace weft::train
