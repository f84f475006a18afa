// Rehearsed steps take and send what the allocator and the transport count of real ones.
#include "cli/step/rehearsed_step.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "nn/meta.h"

using namespace weft;
using namespace weft::cli;

namespace {

RankedStepOptions small(const std::string& strategy, const std::string& precision,
                        const std::string& model = "vit_lite") {
  return {.model = model, .strategy = {.name = strategy}, .batch = 8, .precision = precision};
}

void check(const RankedStepOptions& options, int devices) {
  INFO(fmt::format("{} {} {}{} on {}", options.model, options.strategy.name, options.precision,
                   options.options.checkpoint_activations.value_or(false) ? " recomputes" : "",
                   devices));
  const std::vector<RankCost> real = measure(options, devices), dry = rehearse(options, devices);
  REQUIRE(dry.size() <= real.size());
  CHECK(static_cast<double>(fullest(dry).peak) ==
        Approx(static_cast<double>(fullest(real).peak)).epsilon(0.05));
  for (size_t r = 0; r < dry.size(); ++r) {
    INFO("rank " << r);
    // How long a collective keeps its operands is a matter of time.
    CHECK(static_cast<double>(dry[r].state) ==
          Approx(static_cast<double>(real[r].state)).epsilon(0.05));
    CHECK(dry[r].sent == real[r].sent);
    for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kOptimizer}) {
      CHECK(dry[r][kind] == real[r][kind]);
    }
  }
}

}  // namespace

TEST_CASE("one device in every precision, with and without recomputation") {
  for (const train::Precision& precision : train::precisions()) {
    RankedStepOptions options = small("single", std::string(precision.name));
    check(options, 1);
    options.options.checkpoint_activations = true;
    check(options, 1);
  }
}

TEST_CASE("every strategy, in fp32 and in bf16, with and without recomputation") {
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const std::string& strategy : dist::strategy_names()) {
      if (strategy == "single") continue;
      RankedStepOptions options = small(strategy, precision);
      check(options, 2);
      options.options.checkpoint_activations = true;
      check(options, 2);
    }
  }
}

TEST_CASE("strategies with copies and other precisions") {
  check(small("hsdp", "bf16"), 4);
  check(small("fsdp+tp", "fp32"), 4);
  check(small("dp", "bf16"), 4);
  for (const std::string precision : {"fp16", "bf16-true"}) {
    for (const std::string strategy : {"ddp", "fsdp", "tp", "pipeline"}) {
      RankedStepOptions options = small(strategy, precision);
      options.options.checkpoint_activations = true;
      check(options, 2);
    }
  }
  RankedStepOptions copies = small("pipeline", "bf16");
  copies.strategy.pipeline_stages = 2;
  check(copies, 4);
  // As training counts a batch.
  copies.is_batch_shared = true;
  check(copies, 4);
  RankedStepOptions shared = small("fsdp+tp", "fp32");
  shared.is_batch_shared = true;
  check(shared, 4);
}

TEST_CASE("layers that are split, in every precision") {
  for (const train::Precision& precision : train::precisions()) {
    check(small("tp", std::string(precision.name)), 2);
  }
}

TEST_CASE("a language model that recomputes, under every strategy") {
  for (const std::string& strategy : dist::strategy_names()) {
    RankedStepOptions options = small(strategy, "bf16", "gpt_mini");
    options.options.checkpoint_activations = true;
    check(options, strategy == "single" ? 1 : 2);
  }
}

TEST_CASE("fp8 under every strategy") {
  for (const std::string& strategy : dist::strategy_names()) {
    if (strategy != "single") check(small(strategy, "fp8"), 2);
  }
}

TEST_CASE("the levels of fp8, alone and over ranks") {
  for (const std::string level : {"O1", "O2", "O3"}) {
    INFO(level);
    RankedStepOptions options = small("single", "fp8");
    options.fp8_level = level;
    check(options, 1);
    options.strategy.name = "ddp";
    check(options, 2);
  }
}

TEST_CASE("convolutions and other optimizers") {
  for (const std::string model : {"resnet8", "simple_cnn", "cct_2_3x3"}) {
    check(small("single", "fp32", model), 1);
    check(small("single", "fp64", model), 1);
    check(small("ddp", "bf16", model), 2);
    check(small("pipeline", "bf16", model), 2);
  }
  RankedStepOptions options = small("fsdp", "fp32");
  options.optimizer = "sgd";
  check(options, 2);
}

TEST_CASE("batches so small that what kernels take for themselves is a large part") {
  for (const std::string model : {"simple_cnn", "resnet8", "cct", "gpt_mini"}) {
    for (const std::string precision : {"fp32", "tf32", "bf16", "fp16", "bf16-true"}) {
      for (const int64_t batch : {1, 4, 16}) {
        RankedStepOptions options = small("single", precision, model);
        options.batch = batch;
        check(options, 1);
        if (model != "cct" && model != "gpt_mini") continue;
        options.options.checkpoint_activations = true;
        check(options, 1);
      }
    }
  }
}

TEST_CASE("every model at its width, on small images, of two layers where it has layers") {
  const auto exists = [](const RankedStepOptions& options) {
    try {
      const nn::MetaScope meta;
      make_step_model(options);
      return true;
    } catch (const Error&) {  // it has no such option
      return false;
    }
  };
  for (const std::string& model : step_model_names()) {
    RankedStepOptions options = small("single", "fp32", model), shallow = options;
    shallow.options.layers = 2;
    if (exists(shallow)) options = shallow;
    {
      const nn::MetaScope meta;
      constexpr int64_t kMany = 1'000'000;
      if (make_step_model(options)->num_parameters() > kMany) options.batch = 8;
    }
    const bool is_of_photographs = model == "resnet50" || model == "vgg11" ||
                                   model.starts_with("vit_b_") || model.starts_with("vit_l_");
    if (is_of_photographs) options.options.image_size = 64;
    for (const std::string precision : {"fp32", "bf16"}) {
      options.precision = precision;
      check(options, 1);
    }
  }
}

TEST_CASE("a language model under strategies") {
  for (const std::string strategy : {"ddp", "fsdp", "tp", "fsdp+tp", "pipeline"}) {
    check(small(strategy, "bf16", "gpt_mini"), 2);
  }
  check(small("single", "tf32", "gpt_mini"), 1);
}

TEST_CASE("a model that no machine here could hold") {
  RankedStepOptions options{
      .model = "vit_l_16", .strategy = {.name = "fsdp"}, .batch = 256, .precision = "bf16"};
  options.options.layers = 96;
  const RankCost cost = rehearse(options, 1024)[0];
  CHECK(cost.peak > int64_t{100} << 30);
  CHECK(cost[MemoryKind::kOptimizer] < int64_t{16} << 20);
}
