// Every strategy keeps the bytes of its formula, within 5%, and sends exactly as many.
#include <set>

#include "cli/train_runs.h"

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
      "bench sharding --json --model vit_lite --devices 1,2,3,4 --communicator in-process");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  std::set<std::string> seen;
  for (const json& result : parse_lines(outcome.out)) {
    check(result);
    const int ranks = result.at("devices");
    if (ranks > 1) CHECK(result.at("sent").at("measured") > 0);
    seen.insert(fmt::format("{}{}", result.at("strategy").get<std::string>(), ranks));
  }
  for (const char* name :
       {"single1", "ddp1", "ddp4", "zero14", "zero23", "fsdp2", "zero34", "hsdp4"}) {
    INFO(name);
    CHECK(seen.count(name) == 1);
  }
}

TEST_CASE("processes keep and send what threads do") {
  const Outcome outcome =
      run_weft("bench sharding --json --model vit_lite --devices 2 --strategy ddp,fsdp --check");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto results = parse_lines(outcome.out);
  REQUIRE(results.size() == 4);
  for (const json& result : results) check(result);
  for (int i : {0, 1}) {
    CHECK(results[i].at("communicator") == "in-process");
    CHECK(results[i + 2].at("communicator") == "mpi");
    CHECK(results[i].at("memory") == results[i + 2].at("memory"));
    CHECK(results[i].at("sent") == results[i + 2].at("sent"));
  }
}

TEST_CASE("a strategy without a formula is a usage error") {
  check_error(run_weft("bench sharding --strategy fastest"), 2, "\"fastest\"");
  check_error(run_weft("bench sharding --strategy hsdp --devices 3 --shard-size 2"), 2,
              "shard-size 2 does not divide 3 devices");
}
