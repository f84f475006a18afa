// Draws the house: draw ROOT, or below `bazel run` the workspace, as SVG on standard output.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/house/house.h"

int main(int argc, char** argv) {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  try {
    const auto house = weft::house::read_house(argc > 1 ? argv[1] : workspace ? workspace : ".");
    std::fputs(weft::house::draw(house).c_str(), stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: error: draw: %s\n", error.what());
    return 1;
  }
}
