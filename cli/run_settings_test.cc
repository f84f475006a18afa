#include "cli/run_settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "train/config_yaml.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains, Catch::Matchers::StartsWith;
using nlohmann::json;

namespace {

/// What `weft train` would run with.
EffectiveSettings parse(const std::string& line) {
  Command train("train", "");
  RunSettings settings;
  add_run_settings(train, settings);
  std::istringstream words(line);
  train.parse({std::istream_iterator<std::string>(words), {}});
  return effective(settings);
}

std::string write_file(const std::string& name, const std::string& text) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/" + name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE("a setting that another one makes nothing of is an error that names both") {
  for (const auto& [option, message] : std::vector<std::pair<std::string, std::string>>{
           {"--magnitude 5", "magnitude: a setting of rand-augment, which this run has not"},
           {"--no-flip --alternate-flip", "alternate-flip: a setting of flip, which this run"},
           {"--interpolation timm", "interpolation: a setting of weights that training starts"},
           {"--loss-scale-window 7", "loss-scale-window: a setting of a dynamic loss-scale in"},
           {"--tf32-rounding nearest", "tf32-rounding: a setting of precision tf32, which"},
           {"--model resnet8 --drop-path 0.1", "drop-path: 0.1 is set, but model resnet8 has none"},
           {"--model resnet8 --checkpoint-activations",
            "checkpoint-activations: true is set, but model resnet8 has none"},
           {"--model resnet8 --config " + write_file("path.yaml", "drop-path: 0.1\n"),
            "key \"drop-path\": 0.1 is set, but model resnet8 has none"}}) {
    INFO(option);
    CHECK_THROWS_AS(parse(option), UsageError);
    CHECK_THROWS_WITH(parse(option), Contains(message));
  }
  for (const char* option : {"--rand-augment 2 --magnitude 5", "--no-flip --no-alternate-flip",
                             "--precision fp16 --loss-scale-window 7", "--drop-path 0.1"}) {
    CHECK_NOTHROW(parse(option));
  }
}

TEST_CASE("devices are a number, or all that there are") {
  CHECK(parse("--devices 4").config.devices == 4);
  CHECK(parse("--devices auto").config.devices == 1);  // of the CPU
  CHECK(parse("--devices -1").config.devices == 1);
  CHECK(parse("--devices auto").origins.at("devices") == "command line");
  for (const char* wrong : {"0", "-2", "1.5", "two", "0,2", "99999999999"}) {
    INFO(wrong);
    CHECK_THROWS_WITH(
        parse(std::string("--devices ") + wrong),
        fmt::format("--devices: expected a number from 1 to 65536, or auto, got \"{}\"", wrong));
  }
}

TEST_CASE("each setting of a strategy has its option") {
  struct Case {
    std::string line, key;
    json value;
  };
  for (const auto& [line, key, value] : std::vector<Case>{
           {"--strategy ddp --bucket-mb 3", "bucket_mb", 3},
           {"--strategy ddp --compress-dtype bf16", "compress_dtype", "bf16"},
           {"--strategy ddp --static-graph", "static_graph", true},
           {"--strategy ddp --find-unused", "find_unused", true},
           {"--strategy fsdp --wrap EncoderBlock,Linear", "wrap", "EncoderBlock,Linear"},
           {"--strategy fsdp --shard-grad-op", "shard_grad_op", true},
           {"--strategy zero1 --no-prefetch", "no_prefetch", true},
           {"--strategy fsdp --resident-units 4", "resident_units", 4},
           {"--strategy zero2 --offload-optimizer", "offload_optimizer", true},
           {"--strategy fsdp --param-dtype fp32", "param_dtype", "fp32"},
           {"--strategy hsdp --reduce-dtype bf16", "reduce_dtype", "bf16"},
           {"--strategy zero3 --buffer-dtype fp16", "buffer_dtype", "fp16"},
           {"--strategy fsdp --cpu-offload", "cpu_offload", true},
           {"--strategy pipeline --pipeline-schedule gpipe", "pipeline_schedule", "gpipe"}}) {
    INFO(line);
    const EffectiveSettings all = parse("--devices 4 " + line);
    CHECK(to_json(all.config).at(key) == value);
    CHECK(all.origins.at(key) == "command line");
    CHECK(all.origins.at("strategy") == "command line");
    // A checkpoint carries it.
    CHECK(to_json(train::config_from_json(to_json(all.config))) == to_json(all.config));
  }
  CHECK(parse("--devices 2 --strategy SHARD_GRAD_OP").config.strategy.shard_grad_op);
}

TEST_CASE("what a strategy's name switches on comes from where the name does") {
  for (const auto& [name, key] : std::vector<std::pair<std::string, std::string>>{
           {"deepspeed_stage_3_offload", "cpu_offload"},
           {"deepspeed_stage_2_offload", "offload_optimizer"},
           {"fsdp_cpu_offload", "cpu_offload"},
           {"SHARD_GRAD_OP", "shard_grad_op"},
           {"ddp_find_unused_parameters_true", "find_unused"}}) {
    INFO(name);
    const EffectiveSettings all = parse("--devices 2 --strategy " + name);
    CHECK(to_json(all.config).at(key) == true);
    CHECK(all.origins.at(key) == "command line");
    CHECK(all.origins.at("bucket_mb") == "default");
    const std::string file = write_file("named.yaml", "strategy: " + name + "\n");
    CHECK(parse("--devices 2 --config " + file).origins.at(key) == file + ": strategy");
  }
}

TEST_CASE("a setting as a text is taken by every name that the command line knows") {
  const train::Config usual = parse("--devices 2").config;
  const auto with = [&](const std::string& key, const std::string& text) {
    return with_setting(usual, key, text, "answer");
  };
  CHECK(with("strategy", "FSDP").strategy.name == "fsdp");
  CHECK(with("strategy", "deepspeed_stage_3_offload").strategy.name == "zero3");
  CHECK(with("strategy", "deepspeed_stage_3_offload").strategy.cpu_offload);
  CHECK(with("strategy", "auto").strategy.name == "auto");
  CHECK(with("precision", "bf16-mixed").precision == "bf16");
  CHECK(with("devices", "4").devices == 4);
  CHECK(with("devices", "auto").devices == 1);  // of the CPU
  CHECK(with("devices", "-1").devices == 1);
  CHECK(with("lr", "5e-4").lr == 5e-4);
  CHECK(with("model", "vit_lite").model == "vit_lite");
  CHECK_THROWS_WITH(with("strategy", "fdsp"), Contains("did you mean \"fsdp\"?"));
  CHECK_THROWS_WITH(with("epochs", "many"),
                    "answer: key \"epochs\": expected a whole number, got \"many\"");
  CHECK_THROWS_WITH(with("epochs", "0"), Contains("epochs: expected a positive number"));
}

TEST_CASE("layers are watched each so many steps, and a NaN is looked for, where it is asked") {
  CHECK(parse("").config.watch == 0);
  CHECK(parse("--watch").config.watch == 10);
  CHECK(parse("--watch=3 --devices 2 --strategy ddp").config.watch == 3);
  CHECK(parse("--watch").origins.at("watch") == "command line");
  CHECK_FALSE(parse("").config.detect_anomaly);
  CHECK(parse("--detect-anomaly --devices 2 --strategy fsdp").config.detect_anomaly);
  CHECK_THROWS_WITH(parse("--watch --devices 2 --strategy zero1"),
                    Contains("watch: not with zero1"));
  CHECK_THROWS_WITH(parse("--watch=-2"), Contains("watch: must not be negative, got -2"));
  CHECK_THROWS_WITH(parse("--watch="), Contains("--watch: expected a value, got none"));
  CHECK_THROWS_WITH(parse("--detect-anomaly --devices 2 --strategy dp"),
                    Contains("detect-anomaly: not with dp"));
}

TEST_CASE("how long a run goes on, and what it looks at and keeps, from options and from files") {
  struct Case {
    std::string option, key;
    json value;
    std::string file;  // as a file says it
  };
  for (const auto& [option, key, value, in_file] : std::vector<Case>{
           {"--max-steps 500", "max_steps", 500, "max-steps: 500"},
           {"--max-time 90s", "max_time", "90s", "max-time: 90s"},
           {"--max-time 00:01:30:00", "max_time", "00:01:30:00", "max-time: 00:01:30:00"},
           {"--limit-batches 10", "limit_batches", 10, "limit-batches: 10"},
           {"--limit-batches 0.1", "limit_batches", 0.1, "limit_batches: 0.1"},
           {"--limit-val-batches 1.0", "limit_val_batches", 1.0, "limit-val-batches: 1.0"},
           {"--val-check-interval 0.25", "val_check_interval", 0.25, "val-check-interval: 0.25"},
           {"--val-check-interval 50", "val_check_interval", 50, "val-check-interval: 50"},
           {"--num-sanity-val-steps 2", "num_sanity_val_steps", 2, "num-sanity-val-steps: 2"},
           {"--num-sanity-val-steps -1", "num_sanity_val_steps", -1, "num_sanity_val_steps: -1"},
           {"--monitor accuracy/train", "monitor", "accuracy/train", "monitor: accuracy/train"},
           {"--early-stopping", "early_stopping", 3, "early-stopping: 3"},
           {"--early-stopping 7", "early_stopping", 7, "early-stopping: 7"},
           {"--save-top-k 2", "save_top_k", 2, "save-top-k: 2"},
           {"--save-top-k=-1", "save_top_k", -1, "save-top-k: -1"},
           {"--ema 0.99", "ema", 0.99, "ema: 0.99"}}) {
    INFO(option);
    const EffectiveSettings all = parse(option);
    CHECK(to_json(all.config).at(key) == value);
    CHECK(to_json(all.config).at(key).is_number_float() == value.is_number_float());
    CHECK(all.origins.at(key) == "command line");
    // A checkpoint carries it, and so do files in YAML and in JSON.
    CHECK(to_json(train::config_from_json(to_json(all.config))) == to_json(all.config));
    const std::string yaml = write_file("fit.yaml", in_file + "\n");
    CHECK(to_json(parse("--config " + yaml).config) == to_json(all.config));
    CHECK_THAT(parse("--config " + yaml).origins.at(key), Contains(yaml + ": "));
    const std::string own = write_file("fit.json", json({{key, value}}).dump());
    CHECK(to_json(parse("--config " + own).config) == to_json(all.config));
    const std::string written = write_file("written.yaml", train::to_yaml(all.config));
    CHECK(to_json(parse("--config " + written).config) == to_json(all.config));
  }
  CHECK(parse("--early-stopping=2 --min-delta 0.5").config.min_delta == 0.5);
  const auto fails = [](const std::string& text, const std::string& message) {
    INFO(text);
    CHECK_THROWS_WITH(parse("--config " + write_file("wrong.yaml", text)), Contains(message));
  };
  fails("early-stoping: 3", "did you mean \"early-stopping\"?");
  fails("max-step: 3", "did you mean \"max-steps\"?");
  fails("max-time: soon", "key \"max-time\": expected a duration");
  fails("limit-batches: few", "key \"limit-batches\": expected a number, got \"few\"");
  fails("limit-val-batches: 2.5",
        "key \"limit-val-batches\": expected a positive count or a fraction in (0, 1], got 2.5");
  fails("save-top-k: 1.5", "key \"save-top-k\": expected a whole number");
  fails("monitor: accuracy/validaton", "did you mean \"accuracy/validation\"?");
}

TEST_CASE("a setting of another strategy, or of no sense, is named") {
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"--strategy fsdp --bucket-mb 3", "bucket-mb is a setting of ddp, not of fsdp"},
           {"--strategy ddp --wrap Linear", "wrap is a setting of fsdp, zero1"},
           {"--strategy zero1 --shard-grad-op",
            "shard-grad-op is a setting of fsdp, zero3 and hsdp, not of zero1"},
           {"--strategy tp --reduce-dtype bf16", "reduce-dtype is a setting of"},
           {"--strategy ddp --compress-dtype int8",
            "compress-dtype: expected bf16, fp16 or fp32, got \"int8\""},
           {"--strategy ddp --bucket-mb -1", "bucket-mb must not be negative, got -1"},
           {"--strategy fsdp --resident-units 1", "resident-units: expected 2 or more"},
           {"--strategy fsdp --shard-grad-op --resident-units 3", "under shard-grad-op"},
           {"--strategy fsdp --cpu-offload --offload-optimizer", "leave out one"},
           {"--strategy fdsp", "did you mean \"fsdp\"?"}}) {
    INFO(line);
    try {
      parse("--devices 4 " + line);
      FAIL("no error");
    } catch (const UsageError& error) {
      CHECK_THAT(error.what(), Contains(message));
    }
  }
}

TEST_CASE("defaults, recipe, file, command line: the later one counts, and is named") {
  const std::string path = write_file("run.yaml", "epochs: 7\nlr: 0.25\nstrategy: FSDP\n");
  const EffectiveSettings all = parse("--config " + path + " --lr 0.5 --devices 2");
  CHECK(all.config.epochs == 7);
  CHECK(all.config.lr == 0.5);
  CHECK(all.config.strategy.name == "fsdp");
  CHECK(all.origins.at("epochs") == path + ": epochs");
  CHECK(all.origins.at("lr") == "command line");
  CHECK(all.origins.at("label_smoothing") == "recipe builtin-quick");
  CHECK(all.origins.at("momentum") == "default");
  // A file may name its recipe; the command line's counts.
  const std::string recipe = write_file("recipe.yaml", "recipe: cifar10-quick\nepochs: 2\n");
  CHECK(parse("--config " + recipe).config.model == "cct_2_3x3");
  CHECK(parse("--config " + recipe).config.epochs == 2);
  CHECK(parse("--config " + recipe + " --recipe builtin-quick").config.model == "cct");
  // What a run writes is the run.
  const train::Config config = parse("--devices 2 --strategy fsdp --wrap 5000 --flip").config;
  const std::string own = write_file("own.yaml", train::to_yaml(config));
  CHECK(to_json(parse("--config " + own).config) == to_json(config));
  // DeepSpeed's batch rule counts the devices of the command line.
  const std::string rule =
      write_file("ds.json", "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4}");
  CHECK(parse("--config " + rule + " --devices 4").config.accumulate == 4);
  CHECK_THROWS_WITH(parse("--config " + rule + " --devices 3"), Contains("train_batch_size"));
  // Of all devices, or of each.
  CHECK_THROWS_WITH(parse("--global-batch-size 32 --batch-size 8"),
                    Contains("batch-size: 8 images on each device, and global-batch-size 32 on all "
                             "of them (command line); expected one of the two"));
  const std::string whole = write_file("whole.yaml", "global-batch-size: 32\n");
  CHECK_THROWS_WITH(parse("--config " + whole + " --batch-size 8"), Contains("whole.yaml"));
  CHECK(parse("--global-batch-size 32").config.global_batch_size == 32);
  // What else the command line says is a part of the rule.
  const std::string total = write_file("total.json", "{\"train_batch_size\": 16}");
  const EffectiveSettings parts = parse("--config " + total + " --devices 2 --accumulate 4");
  CHECK(parts.config.batch_size == 2);
  CHECK(parts.config.accumulate == 4);
  CHECK(parts.origins.at("accumulate") == "command line");
  CHECK_THAT(parts.origins.at("batch_size"), Contains("train_batch_size"));
  CHECK(parse("--config " + total + " --devices 2 --batch-size 4").config.accumulate == 2);
  CHECK(parse("--config " + total + " --global-batch-size 4").config.accumulate == 4);
  CHECK(parse("--config " + rule + " --batch-size 8").config.accumulate == 8);
  CHECK_THROWS_WITH(parse("--config " + total + " --devices 2 --accumulate 4 --batch-size 3"),
                    Contains("expected devices 2 x train_micro_batch_size_per_gpu (--batch-size) 3 "
                             "x gradient_accumulation_steps (--accumulate) 4 = 24, got 16"));
  CHECK_THROWS_WITH(parse("--config " + total + " --batch-size 0"),
                    "batch-size: expected a positive number, got 0");
  CHECK_THROWS_AS(parse("--config /nowhere/run.yaml"), UsageError);
}

TEST_CASE("what a DeepSpeed file leaves out of its optimizer is DeepSpeed's and not the recipe's") {
  const std::string path =
      write_file("sgd.json",
                 R"({"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})");
  const EffectiveSettings all = parse("--config " + path + " --weight-decay 0.25");
  CHECK(all.config.lr == 0.1);
  CHECK(all.config.momentum == 0);
  CHECK(all.config.clip_norm == 0);
  CHECK(all.config.schedule == "constant");
  CHECK(all.config.warmup == 0);
  CHECK(all.config.label_smoothing == 0.1);
  CHECK(all.origins.at("momentum") == path + ": DeepSpeed's default");
  CHECK(all.origins.at("label_smoothing") == "recipe builtin-quick");
  CHECK(all.config.weight_decay == 0.25);
  CHECK(all.origins.at("weight_decay") == "command line");
  const std::string rest = write_file("rest.json", R"({"train_batch_size": 8, "fp16": {}})");
  CHECK(parse("--config " + rest).config.clip_norm == 1);
  CHECK(parse("--config " + rest).config.schedule == "one-cycle");
}

TEST_CASE("FSDP's NO_SHARD is ddp, whatever Accelerate writes beside it") {
  const std::string file =
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
      "  fsdp_offload_params: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
  const std::string sharding = file + "  fsdp_sharding_strategy: NO_SHARD\n";
  for (const std::string& text :
       {sharding + "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                   "  fsdp_transformer_layer_cls_to_wrap: EncoderBlock\n"
                   "  fsdp_backward_prefetch: BACKWARD_PRE\n",
        sharding + "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 100000\n",
        sharding + "  fsdp_auto_wrap_policy: NO_WRAP\n",
        sharding + "  fsdp_backward_prefetch: NO_PREFETCH\n",
        file + "  fsdp_reshard_after_forward: NO_SHARD\n"
               "  fsdp_backward_prefetch_policy: NO_PREFETCH\n"}) {
    INFO(text);
    const EffectiveSettings all = parse("--config " + write_file("whole.yaml", text));
    CHECK(all.config.strategy.name == "ddp");
    CHECK(all.config.strategy.wrap.empty());
    CHECK_FALSE(all.config.strategy.no_prefetch);
    CHECK(all.config.state_dict_type == "sharded");
    REQUIRE(all.notes.size() == 1);
    CHECK_THAT(all.notes[0], StartsWith("fsdp_config.fsdp_") &&
                                 Contains("nothing here: NO_SHARD leaves parameters whole"));
  }
  // This would take another place in memory.
  const std::string offload =
      write_file("whole.yaml",
                 "distributed_type: FSDP\nnum_processes: 2\n"
                 "fsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_offload_params: true}\n");
  CHECK_THROWS_WITH(parse("--config " + offload),
                    Contains("key \"fsdp_config.fsdp_offload_params\": cpu-offload is a setting"));
}

TEST_CASE("stage 0 of ZeRO is ddp, whatever a file offloads") {
  const std::string yaml = write_file(
      "stage0.yaml",
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 0\n"
      "  offload_optimizer_device: cpu\n  offload_param_device: none\n");
  const std::string ds = write_file("stage0.json", R"({"train_batch_size": 8,
      "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}})");
  for (const std::string& path : {yaml, ds}) {
    const EffectiveSettings all = parse("--devices 2 --config " + path);
    CHECK(all.config.strategy.name == "ddp");
    CHECK_FALSE(all.config.strategy.offload_optimizer);
    CHECK(all.origins.at("offload_optimizer") == "default");
    REQUIRE(all.notes.size() == 1);
    CHECK_THAT(all.notes[0], Contains("offload_optimizer"));
  }
}

TEST_CASE("DeepSpeed's communication_data_type is the setting that the strategy has for it") {
  const std::string plain =
      write_file("plain.json", R"({"train_batch_size": 8, "communication_data_type": "fp16"})");
  const std::string zero = write_file("zero.json", R"({"train_batch_size": 8,
      "communication_data_type": "fp16", "zero_optimization": {"stage": 2}})");
  const std::string outer = write_file("outer.yaml",
                                       "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                                       "  deepspeed_config_file: plain.json\n");
  struct Case {
    std::string file, line, setting;
  };
  for (const auto& [file, line, setting] :
       std::vector<Case>{{plain, "--devices 2", "compress_dtype"},
                         {plain, "--devices 2 --strategy ddp", "compress_dtype"},
                         {plain, "--devices 2 --strategy fsdp", "reduce_dtype"},
                         {plain, "--devices 2 --strategy deepspeed_stage_2", "reduce_dtype"},
                         {zero, "--devices 2", "reduce_dtype"},
                         {zero, "--devices 2 --strategy ddp", "compress_dtype"},
                         {outer, "--devices 2", "compress_dtype"}}) {
    INFO(file << " " << line);
    const EffectiveSettings all = parse("--config " + file + " " + line);
    const json settings = to_json(all.config);
    for (const char* key : {"compress_dtype", "reduce_dtype"}) {
      CHECK(settings.at(key) == (key == setting ? "fp16" : ""));
    }
    CHECK_THAT(all.origins.at(setting),
               StartsWith(file + ": ") && Contains("communication_data_type"));
    CHECK_FALSE(all.origins.contains("communication_dtype"));
    CHECK(all.notes.empty());
  }
  for (const char* line : {"", "--strategy single", "--devices 2 --strategy dp"}) {
    INFO(line);
    const EffectiveSettings all = parse("--config " + plain + " " + line);
    CHECK(all.config.strategy.compress_dtype.empty());
    CHECK(all.config.strategy.reduce_dtype.empty());
    REQUIRE(all.notes.size() == 1);
    CHECK_THAT(all.notes[0], StartsWith("communication_data_type: under strategy "));
  }
  const EffectiveSettings said =
      parse("--config " + zero + " --devices 2 --strategy ddp --compress-dtype bf16");
  CHECK(said.config.strategy.compress_dtype == "bf16");
  CHECK(said.origins.at("compress_dtype") == "command line");
}

TEST_CASE("fp16 through Accelerate's DeepSpeed has DeepSpeed's loss scaling") {
  const std::string deepspeed =
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
      "  zero_stage: 1\n  offload_optimizer_device: none\n  offload_param_device: none\n";
  write_file("plain.json", R"({"train_batch_size": 8})");
  const std::string fp16 = "mixed_precision: fp16\n";
  for (const auto& [text, line] : std::vector<std::pair<std::string, std::string>>{
           {deepspeed + fp16, ""},
           {deepspeed, " --precision fp16"},
           {deepspeed + "  deepspeed_config_file: plain.json\n" + fp16, ""}}) {
    INFO(text << line);
    const std::string path = write_file("scale.yaml", text);
    const EffectiveSettings all = parse("--devices 2 --config " + path + line);
    CHECK(all.config.precision == "fp16");
    CHECK(all.config.loss_scale == "dynamic");
    CHECK(all.config.initial_loss_scale == 65536);
    CHECK(all.config.loss_scale_window == 1000);
    CHECK(all.config.loss_scale_hysteresis == 2);
    CHECK(all.config.min_loss_scale == 1);
    CHECK(all.origins.at("loss_scale_window") == path + ": DeepSpeed's default");
  }
  // What DeepSpeed's own file says counts, and without DeepSpeed there is none of it.
  write_file("scale.json", R"({"fp16": {"enabled": "auto", "loss_scale_window": 123}})");
  const std::string inner =
      write_file("scale.yaml", deepspeed + "  deepspeed_config_file: scale.json\n" + fp16);
  CHECK(parse("--config " + inner).config.loss_scale_window == 123);
  CHECK(parse("--config " + inner).config.loss_scale_hysteresis == 2);
  const std::string ddp = write_file("scale.yaml", "distributed_type: MULTI_GPU\n" + fp16);
  CHECK(parse("--config " + ddp).config.loss_scale_window == 2000);
}

TEST_CASE("a file's value that is out of range is told with the file and its key") {
  const auto fails = [](const std::string& name, const std::string& text,
                        const std::string& message) {
    const std::string path = write_file(name, text);
    INFO(text);
    CHECK_THROWS_WITH(parse("--devices 2 --config " + path), path + ": key " + message);
  };
  fails("a.yaml", "batch-size: 0", "\"batch-size\": expected a positive number, got 0");
  fails("a.yaml", "batch_size: 0", "\"batch_size\": expected a positive number, got 0");
  fails("a.json", R"({"train_batch_size": 8, "optimizer": {"params": {"lr": -1}}})",
        "\"optimizer.params.lr\": lr: expected a positive number, got -1");
  const std::string path = write_file("a.yaml", "strategy: fdsp");
  CHECK_THROWS_WITH(parse("--config " + path),
                    Contains(path + ": key \"strategy\": unknown strategy \"fdsp\""));
  const std::string recipe = write_file("a.yaml", "recipe: none");
  CHECK_THROWS_WITH(parse("--config " + recipe),
                    Contains(recipe + ": key \"recipe\": unknown recipe \"none\": expected one"));
  CHECK_THROWS_WITH(parse("--config " + recipe + " --recipe nope"),
                    StartsWith("unknown recipe \"nope\""));
  const std::string named = write_file("a.yaml", "recipe: gpt-quick");
  CHECK(parse("--config " + named).origins.at("recipe") == named + ": recipe");
  CHECK(parse("--config " + named + " --recipe builtin-quick").origins.at("recipe") ==
        "command line");
  const std::string epochs = write_file("a.yaml", "epochs: 3");
  CHECK_THROWS_WITH(parse("--config " + epochs + " --batch-size 0"),
                    "batch-size: expected a positive number, got 0");
}

TEST_CASE("a file says auto of the devices, and has DeepSpeed's schedule") {
  const std::string all = write_file("all.yaml", "devices: auto\n");
  CHECK(parse("--config " + all).config.devices == 1);  // of the CPU
  CHECK(parse("--config " + all).origins.at("devices") == all + ": devices");
  CHECK(parse("--config " + all + " --devices 3").config.devices == 3);
  const std::string path = write_file("ds.json", R"({"train_batch_size": 8,
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}})");
  const EffectiveSettings settings = parse("--config " + path);
  CHECK_THAT(settings.config.schedule, Contains("\"warmup_num_steps\":10"));
  CHECK(settings.origins.at("schedule") == path + ": scheduler");
  CHECK(settings.notes.empty());
  CHECK(parse("--config " + path + " --schedule cosine").config.schedule == "cosine");
  CHECK(parse("--config " + path + " --warmup 0.5").notes.size() == 1);
}
