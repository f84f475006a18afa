// The CPU kernels on the other common architecture.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/shell.h"
#include "tests/skip.h"

namespace {

TEST_CASE("CPU kernels compile for arm64, and pass their check under qemu") {
  const auto root = std::filesystem::canonical("WORKSPACE").parent_path();
  const weft::CommandOutcome outcome = weft::run_command(
      "timeout 1500 " + (root / "tests/arm64/run").string() + " " + std::getenv("TEST_TMPDIR"));
  if (outcome.code == 3) {
    INFO(outcome.text);
    CHECK_THAT(outcome.text, Catch::StartsWith("lacks "));
    WEFT_SKIP("arm64: its compiler, qemu or libraries are missing (tests/arm64/run)");
  }
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text,
             Catch::Contains("softmax_cpu_highway") && Catch::Contains("layer_norm_cpu_highway"));
}

}  // namespace
