#include "train/config_files/config_file.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "optim/deepspeed_schedule.h"
#include "tests/json_damage.h"
#include "tests/memory_limit.h"
#include "train/config_files/dialects.h"
#include "train/config_yaml.h"
#include "train/optimization.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;
using json = nlohmann::json;

namespace {

std::string write_file(const std::string& name, const std::string& text) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

ConfigFile read(const std::string& name, const std::string& text) {
  return read_config_file(write_file(name, text));
}

Config config_of(const std::string& name, const std::string& text, int64_t devices = 0) {
  const ConfigFile file = read(name, text);
  Config config = with_file(Config(), file);
  if (devices > 0) config.devices = devices;
  apply(file.batch, file.path, config);
  validate(config);
  return config;
}

constexpr const char* kOwnYaml = R"(# a run of ours
model: cct
epochs: 3
lr: 5e-4
batch-size: 32
flip: true
freeze: [head, "encoder.*"]
strategy: fsdp
devices: 2
wrap: 100000
shard-grad-op: true
loss-scale: dynamic
)";

// As `accelerate config` writes it.
constexpr const char* kAccelerateFsdp = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: EncoderBlock
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)";

constexpr const char* kAccelerateMpi = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
ipex_config:
  ipex: false
machine_rank: 0
main_process_ip: 192.168.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: 'no'
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: /root/hostfile
num_machines: 4
num_processes: 16
rdzv_backend: static
same_network: true
use_cpu: true
)";

constexpr const char* kDeepSpeed = R"({
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 16,
  "gradient_accumulation_steps": 4,
  "steps_per_print": 2000,
  "gradient_clipping": 0.5,
  "optimizer": {"type": "AdamW",
    "params": {"lr": 0.0003, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupCosineLR",
    "params": {"warmup_num_steps": 100, "total_num_steps": 1000, "warmup_min_ratio": 0.0}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 3},
  "bf16": {"enabled": false},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 5e8,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}},
  "wall_clock_breakdown": false
})";

const std::vector<std::pair<const char*, const char*>>& files() {
  static const auto& all =
      *new std::vector<std::pair<const char*, const char*>>{{"own.yaml", kOwnYaml},
                                                            {"fsdp.yaml", kAccelerateFsdp},
                                                            {"mpi.yaml", kAccelerateMpi},
                                                            {"ds.json", kDeepSpeed}};
  return all;
}

}  // namespace

TEST_CASE("our own names, in YAML and JSON") {
  const Config yaml = config_of("own.yaml", kOwnYaml);
  CHECK(yaml.model == "cct");
  CHECK(yaml.epochs == 3);
  CHECK(yaml.lr == 5e-4);
  CHECK(yaml.batch_size == 32);
  CHECK(yaml.augmentation.flip);
  CHECK(yaml.freeze == std::vector<std::string>{"head", "encoder.*"});
  CHECK(yaml.strategy.name == "fsdp");
  CHECK(yaml.strategy.wrap == "100000");
  CHECK(yaml.strategy.shard_grad_op);
  // What a run writes is read as the same run.
  CHECK(to_json(config_of("run.yaml", to_yaml(yaml))) == to_json(yaml));
  CHECK(to_json(config_of("run.json", to_json(yaml).dump())) == to_json(yaml));
  Config last = yaml;
  last.seed = 18446744073709551615u;
  CHECK(to_json(config_of("run.yaml", to_yaml(last))) == to_json(last));
  const Config usual;
  const std::string changes = to_yaml(yaml, &usual);
  CHECK_THAT(changes, Contains("batch-size: 32\n") && !Contains("seed"));
  CHECK(to_json(config_of("changes.yaml", changes)) == to_json(yaml));
  for (const std::string& name : recipe_names()) {
    Config config = recipe(name);
    config.weights = "weights \"of\"\n: #1";
    CHECK(to_json(with_file(Config(), read("recipe.yaml", to_yaml(config)))) == to_json(config));
  }
  CHECK(read("empty.yaml", "").settings.empty());
  CHECK(read("empty.json", "{}").settings.empty());
  CHECK(read("marked.yaml", "---\nepochs: 2\n---\n# nothing more\n").settings ==
        json{{"epochs", 2}});
  // By YAML 1.2 a zero in front makes no octal number.
  CHECK(read("zero.yaml", "batch-size: 064").settings == json{{"batch_size", 64}});
  // Where a run happens is no setting of it.
  const ConfigFile place = read("place.yaml", "device: cuda:1\nhosts: nodes.txt\nepochs: 2");
  CHECK(place.dialect == "weft");
  CHECK(place.device == "cuda:1");
  CHECK(place.hostfile == "nodes.txt");
  CHECK(place.settings == json{{"epochs", 2}});
  CHECK(place.keys.at("hosts") == "hosts");
  CHECK(read("place.yaml", "device: null").device.empty());
}

TEST_CASE("an Accelerate file of FSDP, and one for mpirun") {
  const Config fsdp = config_of("fsdp.yaml", kAccelerateFsdp);
  CHECK(fsdp.strategy.name == "fsdp");
  CHECK(fsdp.strategy.shard_grad_op);
  CHECK(fsdp.strategy.wrap == "EncoderBlock");
  CHECK_FALSE(fsdp.strategy.cpu_offload);
  CHECK_FALSE(fsdp.strategy.no_prefetch);
  CHECK(fsdp.checkpoint_activations);
  CHECK(fsdp.state_dict_type == "sharded");
  CHECK(fsdp.precision == "bf16");
  CHECK(fsdp.devices == 8);
  CHECK(read("fsdp.yaml", kAccelerateFsdp).keys.at("wrap") ==
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap");
  const ConfigFile mpi = read("mpi.yaml", kAccelerateMpi);
  CHECK(mpi.dialect == "accelerate");
  CHECK(mpi.settings == json{{"strategy", "ddp"}, {"precision", "fp32"}, {"devices", 16}});
  CHECK(mpi.hostfile == "/root/hostfile");
  CHECK(mpi.machines == 4);
  CHECK(mpi.device == "cpu");
  CHECK(mpi.keys.at("device") == "use_cpu");
  CHECK(mpi.keys.at("hosts") == "mpirun_hostfile");
  CHECK(read("fsdp.yaml", kAccelerateFsdp).device.empty());
  CHECK_THAT(mpi.notes.at(0), Contains("mpirun_config.mpirun_ccl"));
  CHECK_THAT(mpi.notes.at(1), Contains("num_machines: 4 hosts, which mpirun_hostfile names"));
  const std::string modules = "distributed_type: FSDP\nfsdp_config:\n  fsdp_ignored_modules: ";
  CHECK(read("modules.yaml", modules + "null").notes.empty());
  CHECK_THROWS_WITH(
      read("modules.yaml", modules + "head"),
      Contains("modules.yaml: key \"fsdp_config.fsdp_ignored_modules\": expected null: "
               "every module is sharded, got \"head\""));
  const std::vector<std::tuple<std::string, std::string, json>> lines = {
      {"fsdp_sharding_strategy: 4", "strategy", "hsdp"},
      {"fsdp_sharding_strategy: NO_SHARD", "strategy", "ddp"},
      {"fsdp_reshard_after_forward: false", "shard_grad_op", true},
      {"fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 2000", "wrap", "2000"},
      {"fsdp_backward_prefetch: NO_PREFETCH", "no_prefetch", true},
      {"fsdp_offload_params: true", "cpu_offload", true},
      {"fsdp_state_dict_type: FULL_STATE_DICT", "state_dict_type", "full"}};
  for (const auto& [line, key, value] : lines) {
    INFO(line);
    const ConfigFile file = read("line.yaml", "distributed_type: FSDP\nfsdp_config:\n  " + line);
    CHECK(file.settings.at(key) == value);
  }
}

TEST_CASE("a DeepSpeed file: batch rule, optimizer, scheduler, precision, ZeRO") {
  const Config config = config_of("ds.json", kDeepSpeed, 4);
  CHECK(config.batch_size == 16);
  CHECK(config.accumulate == 4);
  CHECK(config.clip_norm == 0.5);
  CHECK(config.optimizer == "adamw");
  CHECK(config.betas == std::vector<double>{0.9, 0.999});
  CHECK(config.eps == 1e-8);
  CHECK(config.lr == 0.0003);
  CHECK(config.weight_decay == 0.01);
  CHECK(optim::schedule_name(config.schedule) == "DeepSpeed's WarmupCosineLR");
  CHECK(config.precision == "fp16");
  CHECK(config.loss_scale == "dynamic");
  CHECK(config.initial_loss_scale == 4096);
  CHECK(config.loss_scale_window == 1000);
  CHECK(config.loss_scale_hysteresis == 3);
  CHECK(config.strategy.name == "zero2");
  CHECK(config.strategy.offload_optimizer);
  CHECK_THROWS_WITH(config_of("ds.json", kDeepSpeed, 2),
                    Contains("key \"train_batch_size\": expected devices 2 x "
                             "train_micro_batch_size_per_gpu (--batch-size) 16 x "
                             "gradient_accumulation_steps (--accumulate) 4 = 128, got 256"));
  // Two of the three give the third.
  const Config micro = config_of("b.json", R"({"train_batch_size": 48,
      "gradient_accumulation_steps": 2})",
                                 3);
  CHECK(micro.batch_size == 8);
  const Config steps = config_of("b.json", R"({"train_batch_size": 48,
      "train_micro_batch_size_per_gpu": 4})",
                                 3);
  CHECK(steps.accumulate == 4);
  CHECK_THROWS_WITH(config_of("b.json", R"({"train_batch_size": 50})", 3),
                    Contains("a multiple of devices 3 = 3, got 50"));
  // Accelerate may lead to it.
  write_file("inner.json", kDeepSpeed);
  const ConfigFile outer = read("outer.yaml",
                                "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                                "  deepspeed_config_file: inner.json\n  zero_stage: 3\n");
  CHECK(outer.settings.at("strategy") == "zero3");
  CHECK(outer.settings.at("lr") == 0.0003);
  CHECK(outer.batch.total == 256);
}

TEST_CASE("what a DeepSpeed file says of the loss scale holds where fp16 is auto, too") {
  const auto said = [](const ConfigFile& file) {
    json found = json::object();
    for (const auto& [key, value] : file.settings.items()) {
      if (key == "precision" || key.find("loss_scale") != key.npos) found[key] = value;
    }
    return found;
  };
  const std::string keys = R"("loss_scale": 0, "loss_scale_window": 123, "initial_scale_power": 8,
      "hysteresis": 4, "min_loss_scale": 2})";
  json expected = {{"initial_loss_scale", 256.0},
                   {"loss_scale_window", 123},
                   {"loss_scale_hysteresis", 4},
                   {"min_loss_scale", 2.0}};
  const ConfigFile open = read("auto.json", R"({"fp16": {"enabled": "auto", )" + keys + "}");
  CHECK(said(open) == expected);
  CHECK(open.keys.at("loss_scale_window") == "fp16.loss_scale_window");
  CHECK(said(read("off.json", R"({"fp16": {"enabled": false, )" + keys + "}")) ==
        json{{"precision", "fp32"}});
  expected["precision"] = "fp16";
  CHECK(said(read("on.json", R"({"fp16": {"enabled": true, )" + keys + "}")) == expected);
  CHECK(said(read("outer.yaml",
                  "distributed_type: DEEPSPEED\nmixed_precision: fp16\ndeepspeed_config:\n"
                  "  deepspeed_config_file: auto.json\n")) == expected);
  // DeepSpeed's own, which are not the recipe's.
  CHECK(said(read("bare.json", R"({"fp16": {"enabled": "auto"}})")) ==
        json{{"initial_loss_scale", 65536.0},
             {"loss_scale_window", 1000},
             {"loss_scale_hysteresis", 2},
             {"min_loss_scale", 1}});
}

TEST_CASE("a run's schedule is DeepSpeed's, step by step, and its configuration carries it") {
  const auto rates = [](const std::string& type, const json& params, int64_t steps = 6) {
    const json all = {{"train_batch_size", 8},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                      {"scheduler", {{"type", type}, {"params", params}}}};
    const Config config = config_of("s.json", all.dump());
    const Config resumed = config_from_json(json::parse(to_json(config).dump()));
    CHECK(to_json(config_of("s.yaml", to_yaml(config))) == to_json(config));
    const optim::Schedule schedule = make_schedule(resumed, steps);
    std::vector<double> found;
    for (int64_t step = 0; step < steps; ++step) found.push_back(config.lr * schedule(step));
    return found;
  };
  const auto check = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-12));
  };
  // From the formulas of deepspeed/runtime/lr_schedules.py, with last_batch_iteration = step - 1.
  check(rates("WarmupLR",
              {{"warmup_min_lr", 0.001}, {"warmup_max_lr", 0.01}, {"warmup_num_steps", 3}}, 5),
        {0.001, 0.001, 0.001 + 0.009 * std::log(2) / std::log(3), 0.01, 0.01});
  const json linear = {{"warmup_num_steps", 2}, {"warmup_type", "linear"}};
  const auto with = [&](json more) {
    more.update(linear);
    return more;
  };
  check(rates("WarmupDecayLR", with({{"warmup_max_lr", 0.02}, {"total_num_steps", 4}})),
        {0, 0, 0.01, 0.02, 0.01, 0});
  // Without a peak it is DeepSpeed's own, and not the optimizer's.
  check(rates("WarmupDecayLR", with({{"total_num_steps", 4}})), {0, 0, 5e-4, 1e-3, 5e-4, 0});
  check(rates("WarmupLR", linear, 4), {0, 0, 0.005, 0.01});
  check(rates("WarmupCosineLR", with({{"total_num_steps", 4}, {"cos_min_ratio", 0.1}})),
        {0, 0, 0.005, 0.0055, 0.001, 0.001});
  check(rates("OneCycle",
              {{"cycle_min_lr", 0.002},
               {"cycle_max_lr", 0.01},
               {"cycle_first_step_size", 2},
               {"decay_lr_rate", 1},
               {"decay_step_size", 2}},
              7),
        {0.002, 0.006, 0.01, 0.006, 0.002, 0.002 / 1.5, 0.001});
  check(
      rates("OneCycle",
            {{"cycle_max_lr", 0.01}, {"cycle_first_step_size", 4}, {"cycle_first_stair_count", 2}},
            9),
      {0, 0, 0.005, 0.005, 0.01, 0.005, 0.005, 0, 0});
  // A run knows what is left to it.
  check(rates("WarmupDecayLR",
              {{"total_num_steps", "auto"},
               {"warmup_num_steps", "auto"},
               {"warmup_max_lr", "auto"},
               {"warmup_type", "linear"}},
              4),
        {0, 0, 0.005, 0.01});
  const ConfigFile open = read("s.json", R"({"train_batch_size": 8,
      "scheduler": {"type": "WarmupDecayLR", "params": {}}})");
  const auto endless =
      optim::deepspeed_schedule(open.settings.at("schedule").get<std::string>(), {}, "s.json");
  CHECK_THROWS_WITH(endless(0), Contains("s.json: key \"scheduler.params.total_num_steps\""));
  CHECK(open.notes.size() == 1);
  // The command line's peak, and the file's lowest rate.
  Config config = config_of("s.json", R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR",
      "params": {"warmup_min_lr": 0.1, "warmup_max_lr": 1}}})");
  config.lr = 2;
  CHECK(config.lr * make_schedule(config, 10)(0) == Approx(0.1));
  config.schedule = R"({"type": "WarmupLR", "params": {"warmup_nm_steps": 3}})";
  CHECK_THROWS_WITH(validate(config), Contains("schedule: unknown key ") &&
                                          Contains("did you mean \"warmup_num_steps\"?"));
  config.schedule = "{";
  CHECK_THROWS_WITH(validate(config), Contains("schedule: line 1: expected JSON"));
  CHECK_FALSE(read("s.json", R"({"fp16": {}, "scheduler": {}})").settings.contains("schedule"));
}

TEST_CASE("DeepSpeed's optimizers, by what they do there") {
  const auto of = [](const std::string& type, const json& params) {
    return read("o.json",
                json{{"optimizer", {{"type", type}, {"params", params}}}, {"fp16", {}}}.dump());
  };
  const auto name = [&](const std::string& type, const json& params = json::object()) {
    return of(type, params).settings.at("optimizer");
  };
  CHECK(name("Adam") == "adamw");
  CHECK(name("Adam", {{"adam_w_mode", true}}) == "adamw");
  CHECK(name("Adam", {{"adam_w_mode", false}}) == "adam");
  CHECK(name("AdamW", {{"adam_w_mode", false}}) == "adamw");
  CHECK(name("sgd") == "sgd");
  const ConfigFile lamb =
      of("Lamb", {{"lr", 0.1}, {"betas", {0.5, 0.6}}, {"eps", 1e-6}, {"weight_decay", 0.1}});
  CHECK(lamb.settings == json{{"optimizer", "lamb"},
                              {"lr", 0.1},
                              {"betas", {0.5, 0.6}},
                              {"eps", 1e-6},
                              {"weight_decay", 0.1}});
  CHECK_THAT(lamb.notes.at(0), Contains("optimizer.type: the trust ratio"));
  const ConfigFile muon = of("Muon", {{"lr", 0.1}, {"muon_lr", 0.2}, {"betas", {0.5, 0.6}}});
  CHECK(muon.settings == json{{"optimizer", "muon"}, {"lr", 0.2}, {"nesterov", true}});
  CHECK_THAT(muon.notes.at(0), Contains("optimizer.type: a matrix of R rows"));
  CHECK_THAT(muon.notes.at(1), Contains("optimizer.params.betas"));
  CHECK_THAT(of("Adam", {{"torch_adam", true}}).notes.at(0),
             Contains("optimizer.params.torch_adam"));
  CHECK(of("Adam", {{"torch_adam", true}}).settings.at("weight_decay") == 0.01);
  CHECK(of("Adam", {{"torch_adam", true}, {"weight_decay", 0}}).settings.at("weight_decay") == 0);
  for (const json& without :
       {json{{"torch_adam", false}}, json{{"torch_adam", true}, {"adam_w_mode", false}},
        json{{"torch_adam", true}, {"weight_decay", "auto"}}}) {
    CHECK(!of("Adam", without).settings.contains("weight_decay"));
  }
  CHECK(of("Adam", {{"max_grad_norm", 0.5}}).settings.at("clip_norm") == 0.5);
  for (const auto& [type, params, message] :
       std::vector<std::tuple<std::string, json, std::string>>{
           {"Adam", {{"bias_correction", false}}, "bias_correction\": expected true: moments"},
           {"AdamW", {{"amsgrad", true}}, "amsgrad\": expected false"},
           {"Lamb", {{"max_coeff", 10}}, "max_coeff\": expected none"},
           {"Lamb", {{"min_coeff", 0.01}}, "min_coeff\": expected none"}}) {
    INFO(message);
    CHECK_THROWS_WITH(of(type, params), Contains("o.json: key \"optimizer.params." + message));
  }
}

TEST_CASE("what a DeepSpeed file leaves out has DeepSpeed's own value where DeepSpeed is meant") {
  const auto of = [](const std::string& type) {
    return deepspeed_config(read("o.json", json{{"optimizer", {{"type", type}}}}.dump()));
  };
  const Config sgd = of("SGD"), adam = of("Adam"), muon = of("Muon");
  CHECK(sgd.momentum == 0);
  CHECK(adam.lr == 1e-3);
  CHECK(adam.weight_decay == 0);
  CHECK(adam.clip_norm == 0);
  CHECK(adam.schedule == "constant");
  CHECK(muon.lr == 0.02);
  CHECK(muon.momentum == 0.95);
  CHECK(muon.nesterov);
  CHECK(deepspeed_config(read("o.json", R"({"optimizer": {"type": "SGD",
      "params": {"momentum": 0.5}}})"))
            .momentum == 0.5);
}

TEST_CASE("a DeepSpeed file that names an optimizer leaves the rest of it to DeepSpeed") {
  const auto defaults = [](const std::string& text) { return read("o.json", text).defaults; };
  CHECK(defaults(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}})") ==
        json{{"momentum", 0},
             {"nesterov", false},
             {"betas", {0.9, 0.999}},
             {"eps", 1e-8},
             {"weight_decay", 0},
             {"clip_norm", 0},
             {"schedule", "constant"},
             {"warmup", 0}});
  CHECK(defaults(R"({"optimizer": {"type": "Muon"}})").at("lr") == 0.02);
  // What is auto there is somebody else's.
  CHECK(defaults(R"({"gradient_clipping": "auto", "scheduler": {"type": "WarmupLR"},
      "optimizer": {"type": "AdamW",
                    "params": {"lr": "auto", "weight_decay": "auto", "betas": "auto",
                               "eps": 1e-6}}})") == json{{"momentum", 0}, {"nesterov", false}});
  for (const char* none : {R"({"train_batch_size": 8})", R"({"fp16": {}, "optimizer": {}})"}) {
    CHECK(defaults(none).empty());
  }
  write_file("inner.json", R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.5}}})");
  const ConfigFile outer = read("outer.yaml",
                                "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                                "  deepspeed_config_file: inner.json\n");
  CHECK(outer.defaults.at("weight_decay") == 0);
  CHECK_FALSE(outer.defaults.contains("momentum"));
}

TEST_CASE("the optimizer is offloaded where DeepSpeed offloads it, from stage 1 on") {
  const auto of = [](const std::string& zero) {
    return read("z.json", R"({"train_batch_size": 8, "zero_optimization": )" + zero + "}");
  };
  const std::string offload = R"("offload_optimizer": {"device": "cpu"}})";
  CHECK(of(R"({"stage": 1, )" + offload).settings.at("offload_optimizer") == true);
  CHECK(of(R"({"stage": "auto", )" + offload).settings.at("offload_optimizer") == true);
  // DeepSpeed's own stage is 0.
  for (const std::string& zero : {R"({"stage": 0, )" + offload, "{" + offload,
                                  std::string(R"({"stage": 0, "cpu_offload": true})")}) {
    INFO(zero);
    const ConfigFile file = of(zero);
    CHECK_FALSE(file.settings.contains("offload_optimizer"));
    REQUIRE(file.notes.size() == 1);
    CHECK_THAT(file.notes[0], Contains("zero_optimization.") && Contains("only stage 3 offloads "
                                                                         "parameters, and stages "
                                                                         "1 to 3 the optimizer"));
  }
  // Accelerate's stage is that of a file that leaves it open.
  write_file("open.json", R"({"zero_optimization": {"stage": "auto", )" + offload + "}");
  const auto led_to = [](int stage) {
    return read("outer.yaml", fmt::format("distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                                          "  deepspeed_config_file: open.json\n"
                                          "  zero_stage: {}\n",
                                          stage));
  };
  CHECK(led_to(2).settings == json{{"strategy", "zero2"}, {"offload_optimizer", true}});
  CHECK(led_to(0).settings == json{{"strategy", "ddp"}});
  CHECK_FALSE(led_to(0).keys.contains("offload_optimizer"));
  CHECK_THAT(led_to(0).notes.at(0), Contains("open.json: zero_optimization.offload_optimizer"));
}

TEST_CASE("keys of DeepSpeed's and Accelerate's files that change little here") {
  const auto of = [](const std::string& more) {
    return read("k.json", "{\"train_batch_size\": 8, " + more + "}");
  };
  CHECK(of(R"("bfloat16": {"enabled": true})").settings.at("precision") == "bf16");
  CHECK(of(R"("zero_optimization": {"stage": 3, "cpu_offload_param": true})")
            .settings.at("cpu_offload") == true);
  const ConfigFile mics = of(R"("zero_optimization": {"stage": 3, "mics_shard_size": 4})");
  CHECK(mics.settings.at("strategy") == "hsdp");
  CHECK(mics.settings.at("shard_size") == 4);
  CHECK(of(R"("zero_optimization": {"stage": 3, "mics_shard_size": -1})").settings.at("strategy") ==
        "zero3");
  for (const char* noted :
       {R"("zero_optimization": {"stage": 3, "gather_16bit_weights_on_model_save": true})",
        R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
        R"("curriculum_learning": {"enabled": false, "min_difficulty": 8})",
        R"("amp": {"enabled": false, "opt_level": "O1"})",
        R"("torch_autocast": {"enabled": false, "dtype": "bfloat16"})",
        R"("fp16": {"enabled": true, "consecutive_hysteresis": true})",
        R"("zero_optimization": {"stage": 2, "cpu_offload_params": true})",
        R"("tensorboard": {"enabled": true}, "csv_monitor": {"enabled": true})",
        R"("activation_checkpointing": {"partition_activations": true})",
        R"("flops_profiler": {"enabled": true})", R"("log_level": "warning")",
        R"("zero_optimization": {"stage": 3, "save_muon_momentum_buffer_in_memory": true})",
        R"("zero_optimization": {"stage": 3, "enable_sanity_checks": true, "leaf_module": null,
           "zeropp_loco_param": {"err_beta": 0.8}})"}) {
    INFO(noted);
    CHECK(of(noted).notes.size() == 1);
  }
  // As DeepSpeed does it below the third stage.
  const ConfigFile stage2 = of(R"("zero_optimization": {"stage": 2,
      "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}})");
  CHECK(stage2.settings.at("offload_optimizer") == true);
  CHECK_FALSE(stage2.settings.contains("cpu_offload"));
  CHECK_THAT(stage2.notes.at(0), Contains("offload_param.device: only stage 3"));
  CHECK(of(R"("fp16": {"enabled": true, "fused_mode": true}, "pipeline": {},
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu",
      "super_offload": true}})")
            .notes.empty());
  CHECK(of(R"("tensor_parallel": {"autotp_size": 1})").notes.empty());
  CHECK(of(R"("gradient_allreduce_op": "MEAN", "managed_gradient_accumulation": true,
      "zero_optimization": {"stage": 2, "zenflow": null})")
            .notes.empty());
  CHECK(of(R"("zero_optimization": {}, "fp16": null, "scheduler": {}, "optimizer": {})")
            .notes.empty());
  for (const auto& [more, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("amp": {"enabled": true})", "key \"amp.enabled\": expected false: fp16.enabled"},
           {R"("curriculum_learning": {"enabled": true})", "\"curriculum_learning.enabled\""},
           {R"("tensor_parallel": {"autotp_size": 4})", "expected 0 or 1: --strategy fsdp+tp"},
           {R"("torch_autocast": {"enabled": true})", "fp16.enabled or bf16.enabled"},
           {R"("sparse_attention": {"mode": "fixed"})", "expected none: attention is dense"},
           {R"("pipeline": {"stages": 2})", "expected none: --strategy pipeline"},
           {R"("gradient_allreduce_op": "sum")", "expected mean: gradients are averaged"},
           {R"("gradient_allreduce_op": "max")", "expected one of mean, sum"},
           {R"("managed_gradient_accumulation": false)", "expected true: gradient_accumulation"},
           {R"("zero_optimization": {"stage": 2, "zenflow": {}})",
            "key \"zero_optimization.zenflow\": expected null: there is nothing of the kind"},
           {R"("compression_training": {"weight_quantization": {}})", "\"compression_training\""},
           {R"("train_batch_size": 16)", "the key \"train_batch_size\" is there twice"}}) {
    INFO(more);
    CHECK_THROWS_WITH(of(more), Contains("k.json: ") && Contains(message));
  }
  const std::string accelerate = "distributed_type: DEEPSPEED\nmixed_precision: fp8\n";
  const ConfigFile all = read("k.yaml", accelerate + R"(
fp8_config: {backend: TE, amax_history_len: 1024, amax_compute_algo: max}
deepspeed_config: {deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock,
  offload_optimizer_nvme_path: none, offload_param_nvme_path: null}
command_file: null
commands: [ls]
megatron_lm_config: {}
parallelism_config: {}
fsdp_config:
mpirun_config: []
tpu_name: null
tpu_zone: null
downcast_bf16: true
)");
  CHECK(all.notes.size() == 4);
  CHECK(read("k.yaml", accelerate + "parallelism_config: {parallelism_config_tp_size: 1}")
            .notes.empty());
  // FSDP 2 says so once more how many there are.
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 4\n";
  const std::string mesh = "parallelism_config: {parallelism_config_dp_shard_size: ";
  const ConfigFile sharded = read("k.yaml", fsdp + mesh + "4, parallelism_config_tp_size: 1}");
  CHECK(sharded.settings == json{{"strategy", "fsdp"}, {"devices", 4}});
  CHECK(sharded.notes.empty());
  for (const std::string& text :
       {fsdp + mesh + "2}", fsdp + mesh + "4, parallelism_config_dp_replicate_size: 2}",
        "distributed_type: FSDP\n" + mesh + "4}",
        "distributed_type: MULTI_GPU\nnum_processes: 4\n" + mesh + "4}",
        fsdp + "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n" + mesh + "4}"}) {
    INFO(text);
    CHECK_THROWS_WITH(read("k.yaml", text),
                      Contains("k.yaml: key \"parallelism_config\": expected sizes of 1, but under "
                               "FSDP's FULL_SHARD or SHARD_GRAD_OP a dp_shard_size"));
  }
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"parallelism_config: {parallelism_config_tp_size: 2}", "parallelism_config"},
           {"deepspeed_config: {offload_param_nvme_path: /nvme}", "nothing is offloaded to NVMe"},
           {"num_machines: 0", "num_machines"}}) {
    INFO(line);
    CHECK_THROWS_WITH(read("k.yaml", accelerate + line), Contains("k.yaml: ") && Contains(message));
  }
}

TEST_CASE("Accelerate's own values, and what its files said and say otherwise") {
  const auto of = [](const std::string& text) { return read("a.yaml", text); };
  const std::string deepspeed = "distributed_type: DEEPSPEED\n";
  CHECK(of(deepspeed).settings.at("strategy") == "zero2");
  CHECK(of(deepspeed + "deepspeed_config: {deepspeed_config_file: none, zero_stage: 1}")
            .settings.at("strategy") == "zero1");
  write_file("plain.json", R"({"train_batch_size": 8})");
  CHECK_FALSE(of(deepspeed + "deepspeed_config: {deepspeed_config_file: plain.json}")
                  .settings.contains("strategy"));
  const ConfigFile stage2 = of(deepspeed + R"(deepspeed_config:
  offload_optimizer_device: cpu
  offload_param_device: cpu
  zero_stage: 2
)");
  CHECK(stage2.settings == json{{"strategy", "zero2"}, {"offload_optimizer", true}});
  CHECK_THAT(stage2.notes.at(0), Contains("deepspeed_config.offload_param_device changes nothing"));
  CHECK(of(deepspeed + "deepspeed_config: {offload_param_device: cpu, zero_stage: 3}")
            .settings.at("cpu_offload") == true);
  const ConfigFile all = of("distributed_type: MULTI_GPU\nnum_processes: -1\nfp16: true");
  CHECK(all.devices == "auto");
  CHECK(all.settings == json{{"strategy", "ddp"}, {"precision", "fp16"}});
  CHECK(of("distributed_type: MULTI_GPU\nfp16: true\nmixed_precision: bf16")
            .settings.at("precision") == "bf16");
  CHECK_THAT(
      of("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_offload_params: true}").notes.at(0),
      Contains("fsdp_config changes nothing here: distributed_type is not FSDP"));
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config:\n  ";
  CHECK(of(fsdp + "fsdp_offload_params: true").keys.at("strategy") == "distributed_type");
  const ConfigFile hybrid = of(fsdp + "fsdp_reshard_after_forward: HYBRID_SHARD_ZERO2");
  CHECK(hybrid.settings.at("strategy") == "hsdp");
  CHECK(hybrid.settings.at("shard_grad_op") == true);
  CHECK(of(fsdp + "fsdp_reshard_after_forward: NO_SHARD").settings.at("strategy") == "ddp");
  CHECK_THROWS_WITH(
      of(fsdp + "fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: -5"),
      Contains("a.yaml: key \"fsdp_config.fsdp_min_num_params\": expected 1 or more, got -5"));
}

TEST_CASE("a file's dialect is that of most of its keys") {
  const auto fails = [](const std::string& text, const std::string& message) {
    INFO(text);
    CHECK_THROWS_WITH(read("a.yaml", text), Contains("a.yaml: ") && Contains(message));
  };
  fails("distribted_type: FSDP\nmixed_precision: bf16",
        "unknown key \"distribted_type\"; did you mean \"distributed_type\"?");
  fails(R"({"train_batch_sze": 8, "optimizer": {"type": "Adam"}})",
        "unknown key \"train_batch_sze\"; did you mean \"train_batch_size\"?");
  fails("mixed_precision: bf16\nnum_processes: 2", "key \"distributed_type\": expected one of NO");
  fails("batch: 32", "did you mean \"batch-size\"?");
  fails("epochs: 2\nlr: 1\ntrain_batch_size: 8", "unknown key \"train_batch_size\"");
  CHECK(read("a.yaml", "optimizer: sgd").dialect == "weft");
  CHECK(read("a.yaml", "tensor_parallel: 2").dialect == "weft");
  CHECK(read("a.yaml", "optimizer: {type: SGD}").dialect == "deepspeed");
  const ConfigFile all = read("a.yaml", "devices: auto");
  CHECK(all.devices == "auto");
  CHECK(all.settings.empty());
  CHECK(read("a.yaml", "devices: -1").devices == "auto");
  fails("devices: many", "key \"devices\": expected a whole number, got \"many\"");
}

TEST_CASE("a batch rule too large for any number, and one of a global batch") {
  Config config;
  config.devices = 4;
  const auto solve = [&](const BatchRule& rule) { apply(rule, "ds.json", config); };
  constexpr int64_t kLarge = int64_t{1} << 52;
  CHECK_THROWS_WITH(solve({kLarge, kLarge, kLarge}), Contains("ds.json: key \"train_batch_size\""));
  config.global_batch_size = 8;
  solve({.total = 32, .micro = 3});
  CHECK(config.accumulate == 4);
  CHECK_THROWS_WITH(solve({.total = 32, .accumulation = 3}),
                    Contains("--global-batch-size 8 x gradient_accumulation_steps (--accumulate) 3 "
                             "= 24, got 32"));
}

TEST_CASE("MS-AMP's levels, in Accelerate's words and in DeepSpeed's") {
  const json fp8 = {{"precision", "fp8"}, {"fp8_level", "O2"}};
  const auto of_fp8 = [](const ConfigFile& file) {
    json found = json::object();
    for (const char* key : {"precision", "fp8_level"}) {
      if (file.settings.contains(key)) found[key] = file.settings[key];
    }
    return found;
  };
  const std::string accelerate = "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config:\n";
  CHECK(of_fp8(read("a.yaml", accelerate + "  backend: MSAMP\n  opt_level: O2\n")) == fp8);
  // Accelerate's own, where its backend is named and fp8 is asked for.
  const ConfigFile unsaid = read("a.yaml", accelerate + "  backend: MSAMP\n");
  CHECK(of_fp8(unsaid) == fp8);
  CHECK(unsaid.keys.at("fp8_level") == "fp8_config.backend");
  CHECK(of_fp8(read("a.yaml", accelerate + "  margin: 0\n")) == json{{"precision", "fp8"}});
  CHECK(of_fp8(read("a.yaml", accelerate + "  backend: AO\n")) == json{{"precision", "fp8"}});
  CHECK(of_fp8(read("a.yaml",
                    "distributed_type: MULTI_GPU\nmixed_precision: bf16\nfp8_config:\n"
                    "  backend: MSAMP\n")) == json{{"precision", "bf16"}});
  const ConfigFile other =
      read("te.yaml", accelerate + "  backend: TE\n  opt_level: O2\n  margin: 0\n");
  CHECK(of_fp8(other) == json{{"precision", "fp8"}});
  REQUIRE(other.notes.size() == 2);
  CHECK_THAT(other.notes[0], Contains("fp8_config.opt_level changes nothing here: it is MSAMP's"));
  CHECK_THAT(other.notes[1],
             Contains("fp8_config.margin changes nothing here: --fp8-scaling says"));
  CHECK(of_fp8(read("d.yaml",
                    "distributed_type: DEEPSPEED\nmixed_precision: fp8\ndeepspeed_config:\n"
                    "  zero_stage: 0\n  enable_msamp: true\n  msamp_opt_level: O2\n")) == fp8);
  CHECK(of_fp8(read("d.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "msamp": {"enabled": true, "opt_level": "O2"}})")) == fp8);
  CHECK(of_fp8(read("d.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "msamp": {"enabled": false}})")) == json{{"precision", "bf16"}});
  // O3 is ZeRO's, by the names of either.
  const Config zero = config_of("d.json", R"({"train_batch_size": 8,
      "msamp": {"enabled": true, "opt_level": "O3"}, "zero_optimization": {"stage": 2}})",
                                2);
  CHECK(zero.fp8_level == "O3");
  CHECK(zero.strategy.name == "zero2");
  CHECK_NOTHROW(validate(zero));
  const json o3 = {{"precision", "fp8"}, {"fp8_level", "O3"}};
  CHECK(of_fp8(read("d.yaml",
                    "distributed_type: DEEPSPEED\nmixed_precision: fp8\ndeepspeed_config:\n"
                    "  zero_stage: 1\n  enable_msamp: true\n  msamp_opt_level: O3\n")) == o3);
  CHECK(of_fp8(read("a.yaml", accelerate + "  backend: MSAMP\n  opt_level: O3\n")) == o3);
}

TEST_CASE("what is wrong is named: file, key, value, what was expected") {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"a.yaml", "epoch: 3", "unknown key \"epoch\"; did you mean \"epochs\"?"},
      {"a.yaml", "epochs: many", "key \"epochs\": expected a whole number, got \"many\""},
      {"a.yaml", "epochs: 2.5", "key \"epochs\": expected a whole number, got 2.5"},
      {"a.yaml", "flip: 1", "key \"flip\": expected true or false, got 1"},
      {"a.yaml", "lr: [1]", "key \"lr\": expected a number, got [1]"},
      {"a.yaml", "model: true", "key \"model\": expected a text, got true"},
      {"a.yaml", "device: gpu", "key \"device\": unknown device \"gpu\": expected cpu"},
      {"a.yaml", "hosts: [a, b]", "key \"hosts\": expected a text, got [\"a\",\"b\"]"},
      {"a.yaml", "host: nodes.txt", "unknown key \"host\"; did you mean \"hosts\"?"},
      {"a.yaml", "freeze: [1]", "key \"freeze\": expected a list of texts, got [1]"},
      {"a.yaml", "seed: 18446744073709551616", "key \"seed\": expected a smaller number"},
      {"a.yaml", "seed: -1", "key \"seed\": expected a whole number, 0 or more, got -1"},
      {"a.yaml", "epochs: 1\nepochs: 2", "line 2: the key \"epochs\" is there twice"},
      {"a.yaml", "batch-size: 1\nbatch_size: 2", "is there twice"},
      {"a.yaml", "lr: [1", "line 1: expected YAML"},
      {"a.yaml", "epochs: 1\n---\nepochs: 2", "line 3: expected one YAML document, got another"},
      {"a.yaml", "---\n---\nepochs: 2", "line 3: expected one YAML document, got another"},
      {"a.yaml", "- 1", "expected keys with values, got [1]"},
      {"a.json", "{\"lr\": 1,\n", "line 2: expected JSON"},
      {"a.json", "{\"lr\": 1,\n\"lr\": 2}", "the key \"lr\" is there twice"},
      {"a.yaml", "distributed_type: FSPD", "expected one of NO, MULTI_GPU"},
      {"a.yaml", "distributed_type: NO\nmixed_precison: bf16",
       "unknown key \"mixed_precison\"; did you mean \"mixed_precision\"?"},
      {"a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_ofload_params: true}",
       "unknown key \"fsdp_config.fsdp_ofload_params\"; did you mean \"fsdp_offload_params\"?"},
      {"a.yaml", "distributed_type: FSDP\nfsdp_config: 3",
       "fsdp_config: expected keys with values, got 3"},
      {"a.json", R"({"fp16": {"enable": true}})", "unknown key \"fp16.enable\"; did you mean"},
      {"a.json", R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
       "key \"fp16.enabled\": expected false where bf16 is enabled, got true"},
      {"a.json", R"({"zero_optimization": {"stage": 4}})",
       "key \"zero_optimization.stage\": expected 0, 1, 2 or 3, got 4"},
      {"a.json", R"({"train_batch_size": "many"})",
       "key \"train_batch_size\": expected a whole number, got \"many\""},
      {"a.json", R"({"fp16": {}, "optimizer": {"type": "Adagrad"}})",
       "key \"optimizer.type\": expected one of Adam, AdamW, SGD"},
  };
  for (const auto& [name, text, message] : cases) {
    INFO(text);
    CHECK_THROWS_WITH(read(name, text), Contains(name) && Contains(message));
  }
  std::string deep = "a: ";
  for (int i = 0; i < 100; ++i) deep += "[";
  CHECK_THROWS_AS(read("deep.yaml", deep), Error);
  CHECK_THROWS_WITH(read("nested.yaml", deep + std::string(100, ']')), Contains("deep"));
  for (const char* open : {"[", "{\"a\":"}) {
    std::string nested;
    for (int i = 0; i < 80'000; ++i) nested += open;
    CHECK_THROWS_WITH(read("nested.json", nested),
                      Contains("nested.json: JSON nested more than 32 deep"));
  }
  CHECK_THROWS_WITH(read("large.json", R"({"lr": 1e999})"), Contains("a number is too large"));
  // Nothing is told at length.
  const std::string lengthy(1 << 20, 'x');
  for (const json& values :
       {json(lengthy), json{{"epochs", lengthy}}, json{{lengthy, 1}}, json{{"lr", json(10'000, 1)}},
        json{{"distributed_type", lengthy}}, json{{"fp16", lengthy}},
        json{{"fp16", {{lengthy, 1}}}}, json{{"train_batch_size", json(10'000, 1)}}}) {
    try {
      read("lengthy.json", values.dump());
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).size() < 700);
    }
  }
  try {
    const std::string key = lengthy.substr(0, 1 << 18);
    read("lengthy.yaml", "? " + key + "\n: 1\n? " + key + "\n: 2\n");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).size() < 700);
  }
}

TEST_CASE("a file that is too large is refused before it costs memory or time") {
  const std::string most(size_t{1} << 20, '#');
  CHECK(read("most.yaml", most).settings.empty());
  CHECK_THROWS_WITH(read("large.yaml", most + "#"),
                    Contains("large.yaml: 1048577 bytes of YAML, at most 1048576 are read"));
  const std::string path = write_file("huge.json", "{");
  constexpr int64_t kBytes = int64_t{256} << 20;
  std::filesystem::resize_file(path, kBytes);
  const tests::AddressSpaceLimit once(kBytes + kBytes / 2);
  CHECK_THROWS_WITH(read_config_file(path),
                    Contains("huge.json: 268435456 bytes of JSON, at most 8388608 are read"));
}

TEST_CASE("a file cut at any byte is read or is an error that names it") {
  int errors = 0;
  for (const auto& [name, text] : files()) {
    const std::string whole = text;
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      try {
        read(name, whole.substr(0, bytes));
      } catch (const Error& error) {
        ++errors;
        INFO(bytes << " bytes of " << name);
        CHECK_THAT(error.what(), Contains(name));
      }
    }
  }
  CHECK(errors > 500);
}

TEST_CASE("a file with a key left out, one too many, or a value of another type") {
  int errors = 0;
  for (const auto& [name, text] : files()) {
    const json whole = parse_values(write_file(name, text));
    for_each_damage(whole, [&, name = name](const json& damaged, const std::string& key) {
      // What a dialect is told by may be gone: then the file is one of ours, with unknown keys.
      INFO(name << ": " << damaged.dump());
      std::string message;
      try {
        read("damaged.json", damaged.dump());
      } catch (const Error& error) {
        message = error.what();
      }
      errors += !message.empty();
      CHECK((message.empty() || message.find("damaged.json") != message.npos));
      // Intel's extension is nothing to Weft, whatever the file says of it.
      if (damaged.is_object() && damaged.value("ipex_config", json()).contains("levitation")) {
        return;
      }
      if (key == "levitation") {
        CHECK_THAT(message, Contains("unknown key \"") && Contains("levitation\""));
      }
    });
  }
  CHECK(errors > 300);
}
