// Every strategy keeps the bytes of its formula, within 5%, and sends exactly as many.
#include <map>
#include <set>

#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;

namespace {

void check(const json& result) {
  INFO(result.dump());
  for (const auto& [kind, bytes] : result.at("memory").items()) {
    if (!bytes.is_object()) continue;
    CHECK(bytes.at("measured").get<double>() ==
          Approx(bytes.at("formula").get<double>()).epsilon(0.05));
  }
  CHECK(result.at("sent").at("measured") == result.at("sent").at("formula"));
  CHECK(result.at("agrees") == true);
}

}  // namespace

TEST_CASE("memory and traffic of every strategy are those of its formula") {
  const Outcome outcome = run_weft(
      "bench sharding --json --model vit_lite --devices 1,2,3,4 --communicator in-process "
      "--batch-size 2");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  std::set<std::string> seen;
  for (const json& result : parse_lines(outcome.out)) {
    check(result);
    const size_t ranks = result.at("devices");
    const std::string strategy = result.at("strategy");
    if (ranks > 1 && strategy != "dp") CHECK(result.at("sent").at("measured") > 0);
    CHECK(result.at("formula").get<std::string>().find("P") != std::string::npos);
    CHECK(result.at("ranks").size() == (strategy == "dp" ? 1u : ranks));
    seen.insert(fmt::format("{}{}", strategy, ranks));
  }
  for (const char* name : {"single1", "dp1", "dp3", "ddp1", "ddp4", "zero14", "zero23", "fsdp2",
                           "zero34", "hsdp4", "tp1", "tp2", "tp4", "fsdp+tp2", "fsdp+tp4",
                           "pipeline1", "pipeline2", "pipeline3", "pipeline4"}) {
    INFO(name);
    CHECK(seen.count(name) == 1);
  }
  CHECK(seen.count("tp3") == 0);  // of four heads
}

TEST_CASE("cut by tokens and classes, inside copies, and as pipelines side by side") {
  const Outcome outcome = run_weft(
      "bench sharding --json --check --model vit_lite --devices 4 --communicator in-process "
      "--strategy tp,fsdp+tp,pipeline --tensor-parallel 2 --sequence-parallel --parallel-head "
      "--pipeline-stages 2 --batch-size 3");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto results = parse_lines(outcome.out);
  REQUIRE(results.size() == 3);
  for (const json& result : results) check(result);
  CHECK(results[0].at("copies") == 2);
  CHECK(results[0].at("tensor_parallel") == 2);
  CHECK(results[0].at("sequence_parallel") == true);
  CHECK(results[1].at("shard_size") == 2);
  CHECK(results[2].at("pipeline_stages") == 2);
}

TEST_CASE("in bf16 sharded weights and what tp sends take half the bytes, as the formula says") {
  std::map<std::string, std::vector<json>> by_precision;
  for (const std::string precision : {"fp32", "bf16"}) {
    const Outcome outcome = run_weft(
        "bench sharding --json --check --model vit_lite --devices 4 --communicator in-process "
        "--strategy fsdp,zero1,zero2,hsdp,tp,fsdp+tp --batch-size 2 --precision " +
        precision);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    by_precision[precision] = parse_lines(outcome.out);
    for (const json& result : by_precision[precision]) check(result);
  }
  for (size_t i = 0; i < by_precision["fp32"].size(); ++i) {
    const auto sent = [&](const char* precision) {
      return by_precision[precision][i].at("sent").at("measured").get<double>();
    };
    CHECK(sent("bf16") < 0.8 * sent("fp32"));
  }
}

TEST_CASE("a fixed tree of micro-batches costs a reduction for each that a rank takes") {
  const Outcome outcome = run_weft(
      "bench sharding --json --check --model vit_lite --devices 2 --communicator in-process "
      "--batch-size 4 --deterministic-reduce 4");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  std::set<std::string> seen;
  for (const json& result : parse_lines(outcome.out)) {
    INFO(result.dump());
    const std::string strategy = result.at("strategy");
    CHECK(result.at("deterministic_reduce") == 4);
    if (strategy == "ddp") {  // two micro-batches on each rank
      CHECK(result.at("sent").at("measured").get<int64_t>() ==
            2 * result.at("sent").at("formula").get<int64_t>());
    }
    seen.insert(strategy);
  }
  CHECK(seen ==
        std::set<std::string>{"dp", "ddp", "fsdp", "zero1", "zero2", "zero3", "hsdp", "pipeline"});
}

TEST_CASE("a table ends with the formulas of its strategies") {
  const Outcome outcome = run_weft(
      "bench sharding --model vit_lite --devices 2 --communicator in-process --strategy dp,tp");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Catch::Matchers::Contains("dp        keeps 4 P parameters") &&
                              Catch::Matchers::Contains("= 16 P on the first device") &&
                              Catch::Matchers::Contains("tp        keeps 16 P_t"));
}

TEST_CASE("processes keep and send what threads do") {
  const Outcome outcome = run_weft(
      "bench sharding --json --model vit_lite --devices 2 --strategy ddp,fsdp,tp,pipeline --check");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto results = parse_lines(outcome.out);
  REQUIRE(results.size() == 8);
  for (const json& result : results) check(result);
  for (int i : {0, 1, 2, 3}) {
    CHECK(results[i].at("communicator") == "in-process");
    CHECK(results[i + 4].at("communicator") == "mpi");
    CHECK(results[i].at("memory") == results[i + 4].at("memory"));
    CHECK(results[i].at("sent") == results[i + 4].at("sent"));
  }
}

TEST_CASE("a strategy without a formula is a usage error") {
  check_error(run_weft("bench sharding --strategy fastest"), 2, "\"fastest\"");
  check_error(run_weft("bench sharding --strategy hsdp --devices 3 --shard-size 2"), 2,
              "shard-size 2 does not divide 3 devices");
}
