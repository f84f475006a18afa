// What AddressSanitizer and UBSan's alignment check find in emulated kernels, on fibers.
#include <catch2/catch.hpp>
#include <string>

#include "tests/shell.h"

namespace {

using Catch::Matchers::Contains;

weft::CommandOutcome run(const std::string& kernel, const std::string& kind) {
  return weft::run_command("timeout 300 kernels/simt/asan_fault " + kernel + " " + kind);
}

TEST_CASE("the sanitizers find bad addresses in emulated kernels") {
  const struct {
    const char* kernel;
    const char* finding;
  } kFaults[] = {{"shared_out_of_bounds", "AddressSanitizer: use-after-poison"},
                 {"global_out_of_bounds", "AddressSanitizer: use-after-poison"},
                 {"misaligned", "misaligned address"}};
  for (const auto& fault : kFaults) {
    INFO(fault.kernel);
    const weft::CommandOutcome faulty = run(fault.kernel, "faulty");
    CHECK(faulty.code != 0);
    CHECK_THAT(faulty.text, Contains(fault.finding) && Contains("faults_test.cu"));
    const weft::CommandOutcome sound = run(fault.kernel, "sound");
    CHECK(sound.code == 0);
    CHECK(sound.text == "nothing found\n");
  }
}

TEST_CASE("sound kernels that use every kind of operation pass on fibers") {
  for (const char* kernel :
       {"missing_barrier", "ring0", "tma0", "tensor_core0", "copy_overwrites_buffer"}) {
    INFO(kernel);
    const weft::CommandOutcome sound = run(kernel, "sound");
    INFO(sound.text);
    CHECK(sound.code == 0);
  }
}

}  // namespace
