// An op's program as a person calls it: exit codes and messages.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/shell.h"

namespace {

using Catch::Matchers::Contains;

weft::CommandOutcome run(const std::string& program, const std::string& arguments) {
  return weft::run_command("timeout 300 " + program + " " + arguments);
}

weft::CommandOutcome softmax(const std::string& arguments) {
  return run("kernels/softmax/softmax_lab", arguments);
}

int lines_of(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST_CASE("mistakes in the arguments are one line and exit status 2") {
  const struct {
    const char* arguments;
    const char* message;
  } kMistakes[] = {
      {"bench --shape nonsense", "no timed case has \"nonsense\" in its name"},
      {"bench --samples 0", "--samples"},
      {"bench --samples many", "--samples"},
      {"bench --seconds -1", "--seconds"},
      {"bench --device tpu", "tpu"},
      {"bench --dtype f33", "f33"},
      {"bench --dtype i32", "expected a floating dtype"},
      {"bench --roofline /nowhere", "/nowhere: cannot read the roofline"},
      {"bench --variant softmax_cpu_none", "softmax has no variant \"softmax_cpu_none\""},
      {"check --variant softmax_cpu_none", "expected one of softmax_cpu_highway"},
      {"bench --smoke", "--smoke"},
      {"check --tensor-core h999", "check --tensor-core: "},
      {"check --tile 128", "--tile: softmax has no tiles to choose among"},
      {"bench --cluster 2", "--cluster: softmax has no tiles to choose among"},
      {"check --few 0", "--few"},
      {"time", "time"},
  };
  for (const auto& mistake : kMistakes) {
    INFO(mistake.arguments);
    const weft::CommandOutcome outcome = softmax(mistake.arguments);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.text, Contains("weft: error: ") && Contains(mistake.message));
    CHECK(lines_of(outcome.text) == 1);
  }
}

TEST_CASE("the list says what each variant takes, and how many cases") {
  const weft::CommandOutcome outcome = softmax("list");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text, Contains("softmax_cpu_highway") && Contains("f64 f32 f16 bf16") &&
                               Contains("any problem") && Contains("of "));
  const weft::CommandOutcome gemm = run("kernels/gemm/gemm_lab", "list");
  CHECK_THAT(gemm.text, Contains("  gemm_is<kTf32>  "));
  CHECK_THAT(gemm.text, Contains("gemm_cpu_exact"));
}

TEST_CASE("a check ends in a table of variants; one variant has a line for each case") {
  const weft::CommandOutcome all = softmax("check --small");
  CHECK(all.code == 0);
  CHECK_THAT(all.text, Contains("dtype") && Contains("worst case") &&
                           Contains("softmax_cpu_highway") && Contains(" 0 failed, "));
  const weft::CommandOutcome one = softmax("check --small --variant softmax_cpu_highway");
  CHECK(one.code == 0);
  CHECK_THAT(one.text, Contains("max error") && !Contains("worst case"));
  const int checked = std::stoi(one.text.substr(one.text.rfind("softmax: ") + 9));
  CHECK(lines_of(one.text) == checked + 2);
}

TEST_CASE("the table has a line for each variant on each case, and totals") {
  const weft::CommandOutcome outcome = softmax("bench --samples 1");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text, Contains("softmax on cpu") && Contains("softmax_cpu_highway") &&
                               Contains(" timed, 0 skipped"));
}

TEST_CASE("the roofline that one program measures the other reads") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/measured.json";
  CHECK(run("kernels/testing/roofline", "--quick --device cpu >" + path).code == 0);
  const weft::CommandOutcome outcome = softmax("bench --samples 1 --json --roofline " + path);
  CHECK(outcome.code == 0);
  const auto row = nlohmann::json::parse(outcome.text.substr(0, outcome.text.find('\n')));
  CHECK(row["share"] > 0);
  const weft::CommandOutcome wrong = run("kernels/testing/roofline", "--device tpu");
  CHECK(wrong.code != 0);
  CHECK_THAT(wrong.text, Contains("tpu"));
  CHECK(run("kernels/testing/roofline", "--fast").code == 2);
}

}  // namespace
