// What a check on the emulated device says of the memory that kernels use.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/shell.h"

namespace {

weft::CommandOutcome softmax(const std::string& arguments) {
  return weft::run_command("timeout 60 kernels/softmax/softmax_bench check " + arguments);
}

TEST_CASE("accesses are counted by their place in the source") {
  const weft::CommandOutcome outcome = softmax("--case '[5, 31]_axis1_f32' --traffic --json");
  REQUIRE(outcome.code == 0);
  std::istringstream lines(outcome.text);
  int reads = 0;
  uint64_t previous = UINT64_MAX;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("place")) continue;
    INFO(line);
    const uint64_t transactions = row["transactions"];
    CHECK(transactions <= previous);
    previous = transactions;
    CHECK(transactions >= row["ideal"]);
    CHECK(row["executions"] > 0);
    // Dense rows of 31 floats: at most five sectors where four would do.
    if (row["memory"] != "global" || row["access"] != "read") continue;
    ++reads;
    CHECK(transactions <= 2 * row["ideal"].get<uint64_t>());
  }
  CHECK(reads > 0);
}

TEST_CASE("the table names places, dearest first") {
  const weft::CommandOutcome outcome = softmax("--small --traffic");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text, Catch::Contains("over ideal") &&
                               Catch::Contains("kernels/softmax/softmax_cuda_rows.cu:") &&
                               Catch::Contains("(--json has all)"));
  CHECK_THAT(softmax("--small").text, !Catch::Contains("over ideal"));
}

}  // namespace
