// What bazel/nvcc_checked lets pass: told from ptxas's words as CUDA 13 writes them, by a stand-in
// for nvcc; and, where nvcc is installed, from a kernel that does spill.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/shell.h"
#include "tests/skip.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

weft::CommandOutcome checked(const std::string& promise, const std::string& command) {
  return weft::run_command("timeout 120 bazel/nvcc_checked " + promise + " " + command);
}

/// A stand-in for nvcc that says this on standard error.
std::string nvcc_that_says(const std::string& text, int code = 0) {
  const fs::path folder = std::getenv("TEST_TMPDIR");
  std::ofstream(folder / "said") << text;
  const fs::path script = folder / "nvcc";
  std::ofstream(script) << "#!/bin/sh\ncat " << (folder / "said").string() << " >&2\nexit " << code
                        << "\n";
  fs::permissions(script, fs::perms::owner_all);
  return script.string();
}

std::string properties(int stores, int loads) {
  return "ptxas info    : 0 bytes gmem\n"
         "ptxas info    : Compiling entry function '_Z4goodPf' for 'sm_80'\n"
         "ptxas info    : Function properties for _Z4goodPf\n"
         "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
         "ptxas info    : Used 32 registers, used 1 barriers\n"
         "ptxas info    : Compiling entry function '_Z6spillsPf' for 'sm_90a'\n"
         "ptxas info    : Function properties for _Z6spillsPf\n"
         "    16 bytes stack frame, " +
         std::to_string(stores) + " bytes spill stores, " + std::to_string(loads) +
         " bytes spill loads\n"
         "ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size\n";
}

TEST_CASE("a spill is an error that names the kernel, unless it may") {
  const weft::CommandOutcome outcome = checked("none", nvcc_that_says(properties(16, 8)));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.text, Contains("spills") &&
                               Contains("on sm_90a: 16 bytes of stores, 8 of loads") &&
                               Contains("promised to be spill_free") && !Contains("good"));
  CHECK(checked("none", nvcc_that_says(properties(0, 4))).code == 1);
  CHECK(checked("may_spill", nvcc_that_says(properties(16, 8))).code == 0);
}

TEST_CASE("a stack frame without spills is none, and nothing is said") {
  const weft::CommandOutcome outcome = checked("none", nvcc_that_says(properties(0, 0)));
  CHECK(outcome.code == 0);
  CHECK(outcome.text.empty());
}

TEST_CASE("serialised wgmma is an error, whatever may spill") {
  const weft::CommandOutcome outcome = checked(
      "may_spill",
      nvcc_that_says("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                     "instructions are serialized due to insufficient register resources for the "
                     "wgmma pipeline in the function '_Z1kv'\n"));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.text, Contains("C7510") && Contains("error: wgmma is serialised"));
}

TEST_CASE("a setmaxnreg that ptxas ignores is an error, whatever may spill") {
  const weft::CommandOutcome outcome = checked(
      "may_spill",
      nvcc_that_says("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to "
                     "maintain minimum register requirements.\n"));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.text, Contains("C7508") && Contains("error: setmaxnreg is ignored"));
}

TEST_CASE("nvcc's own failures and warnings pass through") {
  const weft::CommandOutcome failed = checked("none", nvcc_that_says("x.cu(3): error: no\n", 2));
  CHECK(failed.code == 2);
  CHECK(failed.text == "x.cu(3): error: no\n");
  CHECK_THAT(checked("none", nvcc_that_says("x.cu(3): warning: hm\n")).text, Contains("hm"));
}

TEST_CASE("a kernel that spills does not build") {
  const char* const home = std::getenv("CUDA_HOME");
  const std::string nvcc = std::string(home ? home : "/usr/local/cuda") + "/bin/nvcc";
  if (!fs::exists(nvcc)) WEFT_SKIP("nvcc is not installed");
  const std::string command = nvcc +
                              " -arch=sm_90 -Xptxas=-v -c bazel/nvcc_checked_test_spill.cu -o " +
                              std::getenv("TEST_TMPDIR") + "/spill.o";
  const weft::CommandOutcome outcome = checked("none", command);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.text, Contains("spills(float*) spills registers on sm_90"));
  CHECK(checked("may_spill", command).code == 0);
}

}  // namespace
