// One of each kind of thing that docs/design.md says how to add, added to a copy of the tree.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/shell.h"

namespace {

TEST_CASE("A thing of each kind is its files and a line of a list") {
  const auto root = std::filesystem::canonical("WORKSPACE").parent_path();
  const weft::CommandOutcome outcome =
      weft::run_command("timeout 3000 " + (root / "tests/additions/run").string());
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.text,
             Catch::Contains("added and used: kernel op strategy model optimizer dtype command"));
}

}  // namespace
