// docs/add-a-kernel.md, followed to the letter. The build has written its files and added its line
// to the list; this runs its commands, whose `./weft kernels` is a build and the
// program beside this test.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/shell.h"

namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

/// How many results a check of the op counted; none may have failed.
int passed(const weft::CommandOutcome& check, const std::string& op) {
  INFO(check.text);
  CHECK(check.code == 0);
  int checked = 0, failed = -1;
  const size_t totals = check.text.rfind(op + ": ");  // behind the table
  REQUIRE(totals != std::string::npos);
  REQUIRE(std::sscanf(check.text.c_str() + totals + op.size(), ": %d checked, %d failed", &checked,
                      &failed) == 2);
  CHECK(failed == 0);
  return checked;
}

TEST_CASE("the plugin of docs/add-a-kernel.md compiles, is listed first and passes its check") {
  std::string command;
  std::getline(std::ifstream("kernels/gemm/documented/plugin_command.txt"), command);
  const std::string script = "./weft kernels check softmax ";
  REQUIRE_THAT(command, StartsWith(script + "--plugin my_softmax.cu"));
  const auto run = [&](const std::string& verb) {
    return weft::run_command(
        "export WEFT_ROOT=$PWD XDG_CACHE_HOME=$TEST_TMPDIR; cd kernels/gemm/documented; "
        "timeout 240 $WEFT_ROOT/kernels/softmax/softmax_lab " +
        verb + " " + command.substr(script.size()));
  };
  CHECK_THAT(run("list").text, Contains("\n  softmax_cuda_mine "));
  CHECK(passed(run("check"), "softmax") > 5);
}

TEST_CASE("the kernel of docs/add-a-kernel.md builds, is listed and passes its check") {
  std::string command;
  std::getline(std::ifstream("kernels/gemm/documented_command.txt"), command);
  const std::string script = "./weft kernels check gemm ";
  REQUIRE_THAT(command, StartsWith(script + "--variant gemm_cuda_columns"));
  const std::string program = "kernels/gemm/documented_program";
  const auto run = [&](const std::string& arguments) {
    return weft::run_command("timeout 240 " + program + " " + arguments);
  };
  const weft::CommandOutcome list = run("list");
  CHECK(list.code == 0);
  CHECK_THAT(list.text, Contains("gemm_cuda_columns"));
  CHECK(passed(run("check " + command.substr(script.size())), "gemm") > 100);
}

}  // namespace
