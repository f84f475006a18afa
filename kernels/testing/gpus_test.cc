// Every op's kernels within the limits of every GPU that can be emulated: a case of each variant.
#include <catch2/catch.hpp>
#include <string>

#include "tests/shell.h"

namespace {

constexpr const char* kOps[] = {
#define WEFT_OP(name) #name,
#include "kernels/ops.inc"
#undef WEFT_OP
};

}  // namespace

TEST_CASE("every op's kernels keep within each GPU's limits") {
  for (const std::string gpu : {"a100", "a10", "4090", "h100", "h200", "b200", "5090"}) {
    for (const std::string op : kOps) {
      const weft::CommandOutcome outcome = weft::run_command(
          "timeout 60 kernels/" + op + "/" + op + "_lab check --device cuda --few 1 --gpu " + gpu);
      INFO(gpu << ": " << outcome.text);
      CHECK(outcome.code == 0);
    }
  }
}
