// weft plan: what it predicts, how it orders, what it refuses; and the benches of its parts.
#include <array>

#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

std::vector<json> plan(const std::string& arguments, const std::string& model = "vit_lite") {
  const Outcome outcome = run_weft("plan --json --model " + model + " " + arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return parse_lines(outcome.out);
}

const json& of(const std::vector<json>& plans, const std::string& strategy) {
  for (const json& p : plans) {
    if (p.at("strategy") == strategy) return p;
  }
  FAIL("no plan for " << strategy);
  return plans.front();
}

}  // namespace

TEST_CASE("a plan lists every strategy, the fastest that fits first") {
  const auto plans = plan("--devices 1024 --nodes 128 --network infiniband-ndr --batch-size 256");
  REQUIRE(plans.size() == 8);
  const auto alone = plan("--devices 1 --batch-size 256");
  const double rate_alone = of(alone, "ddp").at("images_per_second");
  for (size_t i = 1; i < plans.size(); ++i) {
    CHECK(plans[i - 1].at("step_seconds") <= plans[i].at("step_seconds"));
  }
  for (const json& p : plans) {
    INFO(p.dump());
    CHECK(p.at("fits") == true);
    CHECK(p.at("step_seconds") >= p.at("computation_seconds"));
    CHECK(p.at("scaling_efficiency").get<double>() ==
          Approx(p.at("images_per_second").get<double>() / (1024 * rate_alone)));
    CHECK(p.at("flops_utilization").get<double>() < 1);
  }
  // 16 P against 16 P / F and what is unsharded.
  CHECK(of(plans, "ddp").at("state_bytes") > of(plans, "zero2").at("state_bytes"));
  CHECK(of(plans, "zero2").at("state_bytes") > of(plans, "fsdp").at("state_bytes"));
  CHECK(of(plans, "hsdp").at("shard_size") == 8);
  // Of a node's eight devices four share the four heads, and all of them the eight segments.
  CHECK(of(plans, "tp").at("tensor_parallel") == 4);
  CHECK(of(plans, "tp").at("copies") == 256);
  CHECK(of(plans, "fsdp+tp").at("shard_size") == 256);
  CHECK(of(plans, "pipeline").at("pipeline_stages") == 8);
  CHECK(of(plans, "pipeline").at("micro_batches") == 16);
  CHECK(of(plans, "ddp").at("state_bytes") > of(plans, "tp").at("state_bytes"));
  CHECK(of(plans, "tp").at("state_bytes") > of(plans, "fsdp+tp").at("state_bytes"));
  CHECK(of(plans, "ddp").at("state_bytes") > of(plans, "pipeline").at("state_bytes"));
}

TEST_CASE(
    "an image's activations are smaller in bf16, whose copies of the weights are none of them") {
  const auto of_an_image = [](const std::string& precision, const std::string& model = "vit_lite") {
    const auto bytes = [&](int batch) {
      return plan(fmt::format("--devices 1 --precision {} --batch-size {}", precision, batch),
                  model)[0]
          .at("activation_bytes")
          .get<double>();
    };
    return (bytes(96) - bytes(32)) / 64;
  };
  // Of 16 bits, but for what normalisation and the loss keep in f32.
  const double ratio = of_an_image("bf16") / of_an_image("fp32");
  CHECK(ratio >= 0.5);
  CHECK(ratio < 0.7);
  // In megabytes; in bf16 68.8 on a processor that has it, 71.9 on others, which widen operands.
  CHECK(1e-6 * of_an_image("fp32", "vit_b_16") == Approx(120.6).epsilon(0.03));
  CHECK(1e-6 * of_an_image("bf16", "vit_b_16") == Approx(69).epsilon(0.06));
}

TEST_CASE("cuts can be chosen, and dealing tokens out saves memory") {
  const auto plain = plan("--devices 16 --nodes 2 --tensor-parallel 2 --pipeline-stages 4");
  CHECK(of(plain, "tp").at("tensor_parallel") == 2);
  CHECK(of(plain, "pipeline").at("pipeline_stages") == 4);
  const auto dealt = plan("--devices 16 --nodes 2 --tensor-parallel 2 --sequence-parallel");
  CHECK(of(dealt, "tp").at("sequence_parallel") == true);
  CHECK(of(dealt, "tp").at("memory_bytes") < of(plain, "tp").at("memory_bytes"));
  // More micro-batches: less waiting for the pipeline to fill.
  const auto many =
      plan("--devices 16 --nodes 2 --pipeline-stages 4 --micro-batches 32 --batch-size 256");
  const auto few =
      plan("--devices 16 --nodes 2 --pipeline-stages 4 --micro-batches 4 --batch-size 256");
  CHECK(of(many, "pipeline").at("step_seconds") < of(few, "pipeline").at("step_seconds"));
  check_error(run_weft("plan --model vit_lite --devices 8 --tensor-parallel 8"), 1,
              "tensor-parallel 8: vit_lite cannot be cut so");
  check_error(run_weft("plan --devices 8 --pipeline-stages 3"), 2,
              "pipeline-stages 3 does not divide 8 devices");
}

TEST_CASE("a slower network and fewer links make a step longer, one device none") {
  const auto fast = plan("--devices 16 --nodes 2 --network 5us,50GB/s");
  const auto slow = plan("--devices 16 --nodes 2 --network 5us,0.5GB/s");
  CHECK(of(slow, "ddp").at("step_seconds") > of(fast, "ddp").at("step_seconds"));
  CHECK(of(slow, "ddp").at("memory_bytes") == of(fast, "ddp").at("memory_bytes"));
  const auto alone = plan("--devices 1");
  CHECK(of(alone, "ddp").at("communication_seconds") == 0);
  CHECK(of(alone, "ddp").at("scaling_efficiency").get<double>() == Approx(1));
}

TEST_CASE("a plan as a page and as a table") {
  const std::string page = scratch("plan.html");
  const Outcome outcome =
      run_weft("plan --model vit_lite --devices 32 --nodes 4 --network roce-200g --html " + page);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("RoCE") && Contains("hsdp") &&
                              Contains("Predicted, not measured") &&
                              Contains("8 stages, 4 copies"));
  const std::string html = read_file(page);
  CHECK_THAT(html, Contains("<svg") && Contains("Efficiency") && Contains("perfect"));
  CHECK(html.find("http") == std::string::npos);
}

TEST_CASE("clusters that cannot be are usage errors") {
  check_error(run_weft("plan --devices 10 --nodes 4"), 2,
              "10 devices cannot be dealt out evenly to 4 nodes");
  check_error(run_weft("plan --devices 8 --network carrier-pigeon"), 2,
              "unknown network \"carrier-pigeon\"; expected infiniband-hdr");
  check_error(run_weft("plan --devices 8 --network 5us,0GB/s"), 2, "unknown network");
  check_error(run_weft("plan --devices 8 --accelerator abacus"), 2,
              "unknown accelerator \"abacus\"");
  check_error(run_weft("plan --devices 16 --nodes 2 --shard-size 3"), 2,
              "shard-size 3 does not divide 16 devices");
  check_error(run_weft("plan --devices 8 --model net"), 2, "unknown model \"net\"");
  // What somebody probably meant is named.
  for (const auto& [option, word, meant] :
       std::vector<std::array<std::string, 3>>{{"--model", "vit_b_61", "vit_b_16"},
                                               {"--accelerator", "h10", "h100"},
                                               {"--network", "infiniband-ndrr", "infiniband-ndr"},
                                               {"--optimizer", "adamv", "adamw"},
                                               {"--precision", "bf61", "bf16"}}) {
    check_error(run_weft(fmt::format("plan --devices 8 {} {}", option, word)), 2,
                fmt::format("did you mean \"{}\"?", meant));
  }
}

TEST_CASE("predictions of memory hold on steps held back; those of time are given") {
  const Outcome outcome =
      run_weft("bench plan --json --small-batches 2,4 --batch-size 8 --steps 1 --bandwidth 400");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto results = parse_lines(outcome.out);
  CHECK(results.size() == 6);
  for (const json& result : results) {
    INFO(result.dump());
    CHECK(std::abs(result.at("bytes").at("error").get<double>()) < 0.05);
    CHECK(result.at("seconds").at("predicted").get<double>() > 0);
  }
}

TEST_CASE("the overlap of a step is measured and drawn") {
  const std::string file = scratch("overlap.json");
  const Outcome outcome = run_weft(
      "bench overlap --json --strategy fsdp --batch-size 2 --steps 1 --bandwidth 200 --trace " +
      file);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const json result = parse_lines(outcome.out).at(0);
  CHECK(result.at("communication_seconds").get<double>() > 0);
  CHECK(result.at("step_seconds").get<double>() > 0);
  // Both ranks compute, unshard and reduce.
  std::map<std::string, int> seen;
  const json trace = json::parse(read_file(file));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      ++seen[fmt::format("{} {}", event.at("cat").get<std::string>(), event.at("pid").get<int>())];
      CHECK(event.at("dur").get<double>() >= 0);
    }
  }
  for (const char* kind : {"kernel", "phase", "communication"}) {
    for (int rank : {0, 1}) CHECK(seen[fmt::format("{} {}", kind, rank)] > 0);
  }
}
