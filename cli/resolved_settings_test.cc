// What a run's settings come to, over all recipes, models and strategies.
#include "cli/resolved_settings.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "cli/command.h"
#include "cli/run_settings.h"
#include "models/gpt_names.h"
#include "models/registry.h"
#include "train/config_yaml.h"

using namespace weft;
using namespace weft::cli;
using nlohmann::json;

namespace {

using Words = std::vector<std::string>;

EffectiveSettings parse(const Words& words) {
  Command train("train", "");
  RunSettings settings;
  add_run_settings(train, settings);
  train.parse(words);
  return effective(settings);
}

ResolvedSettings resolved(const Words& words) { return resolve(parse(words).config); }

std::string write_file(const std::string& name, const json& content) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/" + name;
  std::ofstream(path) << content.dump();
  return path;
}

/// Each recipe alone, then with each model that learns from its data.
std::vector<Words> runs() {
  std::vector<Words> all;
  for (const std::string& recipe : train::recipe_names()) {
    Words words = {"--recipe", recipe};
    if (recipe == "cvpr2023-finetune") words.insert(words.end(), {"--weights", "w.pth"});
    all.push_back(words);
    const bool is_of_text = train::is_of_text(train::recipe(recipe));
    for (const std::string& model : is_of_text ? models::gpt_names() : models::model_names()) {
      all.push_back(words);
      all.back().insert(all.back().end(), {"--model", model});
    }
  }
  for (const char* strategy : {"dp", "ddp", "fsdp", "zero1", "zero2", "zero3", "tp", "pipeline"}) {
    all.push_back({"--devices", "2", "--strategy", strategy});
  }
  for (const char* strategy : {"hsdp", "fsdp+tp"}) {
    all.push_back({"--devices", "4", "--strategy", strategy});
  }
  all.push_back({"--devices", "2", "--precision", "bf16"});
  all.push_back({"--devices", "2", "--global-batch-size", "63"});
  all.push_back({"--devices", "2", "--strategy", "fsdp", "--shard-grad-op"});
  all.push_back({"--devices", "2", "--deterministic-reduce", "4"});
  for (const char* precision : {"fp16", "fp8", "tf32", "bf16-true", "fp64"}) {
    all.push_back({"--precision", precision});
  }
  return all;
}

}  // namespace

TEST_CASE("what config show prints is a file that makes the same run") {
  for (const Words& words : runs()) {
    CAPTURE(words);
    const EffectiveSettings given = parse(words);
    const ResolvedSettings all = resolve(given.config);
    json file = json::object();
    for (const auto& [key, value] : all.values.items()) file[train::option_name(key)] = value;
    const ResolvedSettings again = resolved({"--config", write_file("again.json", file)});
    CHECK(again.values == all.values);
    CHECK(again.unused == all.unused);
    // Each setting of a run is either of the two, and says where it comes from.
    const json settings = to_json(given.config);
    for (const auto& [key, value] : settings.items()) {
      CAPTURE(key);
      CHECK(all.values.contains(key) != all.unused.contains(key));
      CHECK(given.origins.contains(key));
      if (all.values.contains(key)) CHECK(all.open.contains(key) == all.values[key].is_null());
    }
  }
}

TEST_CASE("each setting is an option of the command line, and takes its value there") {
  const json all = to_json(train::recipe("builtin-quick"));
  for (const auto& [key, value] : all.items()) {
    const std::string option = "--" + train::option_name(key);
    CAPTURE(option);
    Words words = {option};
    if (value.is_array()) {
      for (const json& element : value) words.push_back(element.dump());
      if (value.empty()) words.emplace_back("fc.*");
    } else if (!value.is_boolean()) {
      words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    Command train("train", "");
    RunSettings settings;
    add_run_settings(train, settings);
    CHECK_NOTHROW(train.parse(words));
  }
  CHECK(parse({"--layer-norm-eps", "1e-5", "--model", "vit_b_16"}).config.layer_norm_eps == 1e-5);
  CHECK(parse({"--random-crop"}).config.augmentation.random_crop);
  CHECK(parse({"--rand-augment", "2", "--magnitude", "5"}).config.augmentation.magnitude == 5);
  CHECK_FALSE(parse({"--no-normalize"}).config.normalize);
  CHECK(parse({"--no-normalize"}).origins.at("normalize") == "command line");
}

TEST_CASE("what another setting decides has its value") {
  const auto value = [](const Words& words, const char* key) {
    return resolved(words).values[key];
  };
  CHECK(value({}, "strategy") == "single");
  CHECK(value({"--devices", "2"}, "strategy") == "ddp");
  CHECK(value({"--devices", "2"}, "bucket_mb") == 25);
  CHECK(value({"--devices", "2"}, "compress_dtype") == "fp32");
  CHECK(value({"--devices", "2", "--batch-size", "8"}, "global_batch_size") == 16);
  CHECK(value({"--devices", "2", "--global-batch-size", "32"}, "batch_size") == 16);
  CHECK(value({"--devices", "2", "--strategy", "fsdp"}, "resident_units") == 2);
  CHECK(value({"--devices", "4", "--strategy", "hsdp"}, "shard_size") == 2);
  CHECK(value({"--devices", "2", "--strategy", "tp"}, "tensor_parallel") == 2);
  CHECK(value({"--devices", "2", "--strategy", "pipeline"}, "pipeline_stages") == 2);
  CHECK(value({"--devices", "2", "--strategy", "pipeline"}, "micro_batches") == 4);
  CHECK(value({"--limit-batches", "7"}, "limit_val_batches") == 7);
  CHECK(value({"--model", "vit_b_16"}, "layer_norm_eps") == 1e-6);
  CHECK(value({}, "image_size") == 32);
  const Device gpu{DeviceType::cuda, 0};
  CHECK(resolve(parse({}).config, gpu).values["capture"] == "on");
  CHECK(resolve(parse({"--precision", "fp8"}).config, gpu).values["capture"] == "off");
  CHECK(resolve(parse({"--devices", "2"}).config, gpu).values["collectives"] == "nccl");
}

TEST_CASE("what only the run's data, weights or model say is told in words") {
  const auto open = [](const Words& words, const char* key) {
    return resolved(words).open.at(key);
  };
  CHECK(open({"--data", "folder:photos"}, "image_size") == "the data's own, up to 224");
  CHECK(open({"--devices", "2", "--strategy", "fsdp"}, "wrap") == "what the model names");
  CHECK(open({"--model", "vit_b_16", "--weights", "w.pth"}, "layer_norm_eps") ==
        "the weights', or the model's own");
  CHECK(open({"--devices", "2", "--global-batch-size", "63"}, "batch_size") ==
        "its part of global-batch-size");
}

TEST_CASE("what changes nothing stands apart, with what it is for") {
  const auto unused = [](const Words& words, const char* key) {
    const ResolvedSettings all = resolved(words);
    CHECK_FALSE(all.values.contains(key));
    return all.unused.at(key);
  };
  CHECK(unused({"--devices", "2", "--strategy", "fsdp"}, "bucket_mb") == "of strategy ddp");
  CHECK(unused({}, "loss_scale_window") == "of a dynamic loss-scale in precision fp16");
  CHECK(unused({"--precision", "fp16", "--loss-scale", "128"}, "loss_scale_window") ==
        "of a dynamic loss-scale in precision fp16");
  CHECK(unused({"--optimizer", "sgd"}, "betas") == "sgd has none");
  CHECK(unused({"--model", "resnet8"}, "layer_norm_eps") == "resnet8 has none");
  CHECK(unused({"--recipe", "gpt-quick"}, "flip") == "for images");
  CHECK(unused({"--no-flip"}, "alternate_flip") == "of flip");
  CHECK(unused({}, "magnitude") == "of rand-augment");
  CHECK(unused({}, "min_delta") == "of early-stopping");
  CHECK(resolved({"--early-stopping"}).values["monitor"] == "loss/validation");
}
