// A check on the emulated device: the memory that kernels use, the tensor cores they compute on.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/shell.h"

namespace {

weft::CommandOutcome softmax(const std::string& arguments) {
  return weft::run_command("timeout 300 kernels/softmax/softmax_lab check " + arguments);
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

TEST_CASE("products have the bits of the tensor cores that were asked for, within the bounds") {
  const auto largest_error = [](const std::string& gpu) {
    const weft::CommandOutcome outcome = weft::run_command(
        "timeout 300 kernels/gemm/gemm_lab check --json --variant gemm_cuda_mma "
        "--case '[2]197x96x48_bf16_f32_NRN_bias' --tensor-core " +
        gpu);
    INFO(outcome.text);
    REQUIRE(outcome.code == 0);
    return nlohmann::json::parse(outcome.text.substr(0, outcome.text.find('\n')))["max_error"]
        .get<double>();
  };
  CHECK(largest_error("a100") != largest_error("h100"));
  CHECK(largest_error("h200") == largest_error("h100"));
  const weft::CommandOutcome outcome = softmax("--tensor-core k80");
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.text, Catch::Contains("--tensor-core: unknown GPU \"k80\""));
}

}  // namespace
