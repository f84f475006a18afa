// Every precision and every arithmetic of products, from the command line to the checkpoint.
#include <set>

#include "io/safetensors.h"
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kTiny = " --epochs 1 --limit-batches 2 --batch-size 8 ";

json state_of(const std::string& run, int step) {
  const std::string path = fmt::format("{}/step-{}/state.json", scratch(run), step);
  return json::parse(read_file(path)).at("state");
}

}  // namespace

TEST_CASE("every precision trains, by Fabric's name where it has one") {
  struct Case {
    const char *text, *name;
    DType weights;
  };
  const Case cases[] = {
      {"32-true", "fp32", DType::f32},         {"tf32", "tf32", DType::f32},
      {"bf16-mixed", "bf16", DType::f32},      {"16-mixed", "fp16", DType::f32},
      {"bf16-true", "bf16-true", DType::bf16}, {"16-true", "fp16-true", DType::f16},
      {"64-true", "fp64", DType::f64},         {"transformer-engine", "fp8", DType::f32}};
  for (const Case& c : cases) {
    for (const char* model : {"vit_lite", "resnet8"}) {
      INFO(c.text << " " << model);
      // An optimizer whose divisions an f16 survives.
      const auto events = run_train(
          "precise",
          fmt::format("--optimizer sgd --model {} --precision {}", model, c.text) + kTiny);
      CHECK(std::isfinite(events.back().at("loss").get<double>()));
      const json state = state_of("precise", 2);
      CHECK(state.at("config").at("precision") == c.name);
      for (const auto& [name, tensor] : io::read_safetensors(weights("precise")).tensors) {
        if (tensor.dtype() != DType::i64) CHECK(tensor.dtype() == c.weights);
      }
      const bool scales = std::string(c.name) == "fp16";
      CHECK(events.front().contains("loss_scale") == scales);
      CHECK(state.at("loss_scaler").empty() == !scales);
      if (scales) {
        CHECK(events.front().at("loss_scale") == 65536);
        CHECK(events.front().at("skipped") == false);
      }
    }
  }
}

TEST_CASE("a training runs on each arithmetic of products, and eval can change it") {
  const std::string settings = "--model vit_lite --seed 3" + kTiny;
  run_train("ieee", settings + "--precision fp16");
  std::set<std::string> losses;
  for (const char* arguments :
       {"--precision fp16", "--precision fp16 --matmul-numerics exact",
        "--precision fp16 --matmul-numerics v100", "--precision fp16 --matmul-numerics h200",
        "--precision tf32 --matmul-numerics a100", "--precision fp8 --matmul-numerics b200"}) {
    INFO(arguments);
    const auto events = run_train("modelled", settings + arguments);
    losses.insert(events.back().at("loss").dump());
  }
  CHECK(losses.size() == 6);
  // The same twice, on another number of threads.
  run_train("again", settings + "--threads 1 --precision fp8 --matmul-numerics b200");
  CHECK(diff_weights("modelled", "again") == 0);
  const auto loss = [](const std::string& arguments) {
    const Outcome outcome =
        run_weft("eval --json --limit-batches 2 --checkpoint " + scratch("ieee") + " " + arguments);
    INFO(arguments << ": " << outcome.err);
    REQUIRE(outcome.code == 0);
    return parse_lines(outcome.out).back().at("loss").get<double>();
  };
  const double own = loss("");
  CHECK(loss("--precision fp16 --matmul-numerics ieee") == own);
  for (const char* other : {"--precision fp32", "--precision bf16", "--precision fp8",
                            "--precision 64-true", "--matmul-numerics h100"}) {
    INFO(other);
    CHECK(loss(other) != own);
    CHECK(loss(other) == Approx(own).epsilon(0.05));
  }
  check_error(
      run_weft("eval --checkpoint " + scratch("ieee") + " --precision bf16 --matmul-numerics v100"),
      1, "--matmul-numerics v100 has no bf16 products; use --precision fp16");
}

TEST_CASE("a fixed loss scale stays, none scales nothing, and infinities skip steps") {
  const std::string settings =
      "--model resnet8 --precision fp16 --epochs 1 --limit-batches 4 "
      "--batch-size 8 --loss-scale ";
  const auto scales = [&](const std::string& arguments) {
    std::vector<double> list;
    for (const json& step : events_of(run_train("scaled", settings + arguments), "step")) {
      list.push_back(step.value("loss_scale", 1.0) * (step.value("skipped", false) ? -1 : 1));
    }
    return list;
  };
  CHECK(scales("128") == std::vector<double>(4, 128));
  CHECK(scales("none") == std::vector<double>(4, 1));
  const std::vector<double> falling = scales("dynamic --initial-loss-scale 1e30");
  CHECK(falling[0] < 0);
  CHECK(std::abs(falling[1]) == Approx(5e29));
}

TEST_CASE("bench step compares two precisions; devices tells what each can do") {
  const Outcome bench = run_weft(
      "bench step --json --model resnet8 --batch-size 2 --steps 2 --precision bf16 --against "
      "fp32");
  INFO(bench.err);
  REQUIRE(bench.code == 0);
  const json result = parse_lines(bench.out).back();
  CHECK(result.at("speedup").at("against") == "fp32");
  CHECK(result.at("speedup").at("median").get<double>() > 0);
  const Outcome modelled = run_weft(
      "bench step --model resnet8 --batch-size 2 --steps 1 --precision fp16 --matmul-numerics "
      "v100");
  CHECK(modelled.code == 0);
  CHECK_THAT(modelled.out, Contains("fp16 as on v100"));

  const json devices = parse_lines(run_weft("devices --json").out).back().at("devices");
  CHECK(devices[0].at("precisions").size() == 8);
  CHECK(devices[0].at("bf16_instructions").is_boolean());
  CHECK_THAT(run_weft("devices").out,
             Contains("precisions: fp32, tf32, bf16, fp16, bf16-true, fp16-true, fp64, fp8;"));
}
