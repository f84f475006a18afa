// docs/add-a-kernel.md, followed to the letter. The build has written its file and added its line
// to the list; this runs its command, whose `./weft --flavor simt kernels` is a build and the
// program beside this test.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>

namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("the kernel of docs/add-a-kernel.md builds, is listed and passes its check") {
  std::string command;
  std::getline(std::ifstream("kernels/gemm/documented_command.txt"), command);
  const std::string script = "./weft --flavor simt kernels check gemm ";
  REQUIRE_THAT(command, StartsWith(script + "--variant gemm_cuda_columns"));
  const std::string program = "kernels/gemm/documented_program";
  const auto run = [&](const std::string& arguments, std::string& text) {
    std::FILE* const pipe =
        popen(("timeout 240 " + program + " " + arguments + " 2>&1").c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
    return WEXITSTATUS(pclose(pipe));
  };
  std::string list, check;
  CHECK(run("list", list) == 0);
  CHECK_THAT(list, Contains("gemm_cuda_columns"));
  CHECK(run("check " + command.substr(script.size()), check) == 0);
  INFO(check);
  int checked = 0, failed = -1;
  REQUIRE(std::sscanf(check.c_str(), "gemm: %d checked, %d failed", &checked, &failed) == 2);
  CHECK(checked > 100);
  CHECK(failed == 0);
}

}  // namespace
