// docs/add-a-kernel.md, followed to the letter. The build has written its file and added its line
// to the list; this runs its command, whose `./weft kernels` is a build and the
// program beside this test.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/shell.h"

namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

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
  const weft::CommandOutcome check = run("check " + command.substr(script.size()));
  INFO(check.text);
  CHECK(check.code == 0);
  int checked = 0, failed = -1;
  const size_t totals = check.text.rfind("gemm: ");  // behind the table
  REQUIRE(totals != std::string::npos);
  REQUIRE(std::sscanf(check.text.c_str() + totals, "gemm: %d checked, %d failed", &checked,
                      &failed) == 2);
  CHECK(checked > 100);
  CHECK(failed == 0);
}

}  // namespace
