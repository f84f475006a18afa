// Weft as an external repository of Bazel's.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/shell.h"

namespace {

TEST_CASE("Another repository builds on Weft's, and has a kernel checked by its rules") {
  const auto root = std::filesystem::canonical("WORKSPACE").parent_path();
  const weft::CommandOutcome outcome =
      weft::run_command("timeout 1500 " + (root / "tests/install/external_repository").string());
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text, Catch::EndsWith("sum 24\n"));
}

}  // namespace
