// weft estimate: a model that is here, and one of which only the size is known.
#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

TEST_CASE("a count of parameters is told as Accelerate tells it") {
  // `accelerate estimate-memory bert-base-cased`: the model, its gradients, the backward pass,
  // Adam's step.
  const std::string bert = "estimate --parameters 108310272 --buffers 8192 --dtype ";
  const Outcome outcome = run_weft(bert + "float32,float16");
  CHECK_THAT(outcome.out, Contains("float32     413.18 MiB   413.18 MiB   413.18 MiB   826.36 MiB"
                                   "     1.61 GiB     1.61 GiB"));
  CHECK_THAT(outcome.out, Contains("float16     206.59 MiB   413.18 MiB   619.77 MiB   826.36 MiB"
                                   "   826.36 MiB   826.36 MiB"));
  const auto whole = nlohmann::json::parse(run_weft(bert + "float32 --json").out);
  CHECK(whole.at("model_bytes") == 4 * 108310272 + 8192);
  CHECK(whole.at("peak_bytes") == 4 * whole.at("model_bytes").get<int64_t>());
  // Without its two tables of 512 positions it is 433,241,088 bytes.
  CHECK_THAT(run_weft("estimate --parameters 108310272 --dtype float32").out,
             Contains("413.17 MiB") && Contains("0 bytes of buffers (--buffers)"));
  check_error(run_weft("estimate --parameters 10 --dtype float8"), 2,
              "--dtype: \"float8\" is not one of float32, float16, bfloat16, int8, int4");
  check_error(run_weft("estimate --parameters 99999999999999999999"), 2,
              "--parameters: expected a whole number, at most 9223372036854775807, got "
              "99999999999999999999");
  check_error(run_weft("estimate --parameters 9000000000000000000"), 2,
              "--parameters: expected 1 to 1e+17, got 9000000000000000000");
}

TEST_CASE("an option of the other estimate is an error") {
  for (const auto& [line, pair] : std::vector<std::array<std::string, 2>>{
           {"--parameters 10 --model nosuch", "--model excludes --parameters"},
           {"--parameters 10 --devices 8", "--devices excludes --parameters"},
           {"--parameters 10 --precision bf16", "--precision excludes --parameters"},
           {"--parameters 10 --optimizer sgd", "--optimizer excludes --parameters"},
           {"--parameters 10 --shard-size 2", "--shard-size excludes --parameters"},
           {"--check --parameters 10", "--parameters excludes --check"},
           {"--dtype float32", "--dtype requires --parameters"},
           {"--buffers 8192 --model vit_b_16", "--buffers requires --parameters"}}) {
    INFO(line);
    check_error(run_weft("estimate " + line), 2, pair);
  }
}

TEST_CASE("a step's memory and traffic, kind by kind") {
  const auto row = nlohmann::json::parse(
      run_weft(
          "estimate --model simple_cnn --devices 2 --strategy ddp --precision fp32 --batch-size 64 "
          "--check --json")
          .out);
  const int64_t bytes = 4 * row.at("parameters").get<int64_t>();
  CHECK(row.at("parameters_bytes") == bytes);
  CHECK(row.at("optimizer_bytes") == 2 * bytes);
  CHECK(row.at("sent_bytes") >= bytes);
  CHECK(row.at("largest_layer") == "fc1");
  CHECK(std::abs(row.at("off").get<double>()) < 0.05);
  // What kernels take for themselves is a tenth of these.
  CHECK(
      run_weft("estimate --model simple_cnn --batch-size 16 --precision bf16,fp16 --check").code ==
      0);
  // On devices that share a layer or a pipeline the batch is that of all, checked or not.
  const auto peak = [](const std::string& devices) -> int64_t {
    const std::string line = "estimate --model vit_lite --precision fp32 --json " + devices;
    return parse_lines(run_weft(line).out).at(0).at("peak_bytes");
  };
  for (const std::string strategy : {"tp", "pipeline"}) {
    INFO(strategy);
    CHECK(peak("--batch-size 32 --devices 2 --strategy " + strategy) <
          0.8 * peak("--batch-size 32"));
    CHECK(run_weft("estimate --model vit_lite --precision fp32 --batch-size 16 --devices 2 --check "
                   "--strategy " +
                   strategy)
              .code == 0);
  }
  // What was asked for by name and cannot be is told before anything else.
  check_error(run_weft("estimate --model cct,vit_lite --devices 3 --strategy tp"), 2,
              "3 ranks do not divide");
  check_error(run_weft("estimate --model vit_lite --devices 2 --strategy tp --precision fp8:O1"), 2,
              "fp8-level: O1 is of strategies single, ddp, not of tp");
  check_error(run_weft("estimate --precision fp8:O4"), 2, "O4");
  check_error(run_weft("estimate --precision fp8:o1"), 2, "did you mean \"O1\"?");
  check_error(run_weft("estimate --devices 0,2"), 2,
              "--devices: expected a number from 1 to 65536, or auto, got \"0,2\"");
  check_error(run_weft("estimate --model gpt2"), 2,
              "--model gpt2: its weights say how large it is; expected vit_b_16, ");
  // A strategy has the names that weft train knows.
  const std::string two = "estimate --model simple_cnn --devices 2 --precision fp32 --json ";
  CHECK(run_weft(two + "--strategy FSDP").out == run_weft(two + "--strategy fsdp").out);
  CHECK_THAT(run_weft(two + "--strategy FSDP").out, Contains("\"strategy\":\"fsdp\""));
  // What somebody probably meant is named.
  for (const auto& [option, word, meant] :
       std::vector<std::array<std::string, 3>>{{"--model", "vit_b_61", "vit_b_16"},
                                               {"--model", "gpt_mnii", "gpt_mini"},
                                               {"--strategy", "fdsp", "fsdp"},
                                               {"--precision", "bf61", "bf16"},
                                               {"--optimizer", "adamv", "adamw"},
                                               {"--parameters 10 --dtype", "flaot16", "float16"}}) {
    check_error(run_weft(fmt::format("estimate {} {}", option, word)), 2,
                fmt::format("did you mean \"{}\"?", meant));
  }
}
