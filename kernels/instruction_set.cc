#include "kernels/instruction_set.h"

#include <hwy/targets.h>

#include <array>
#include <cstdlib>

#include "core/error.h"

namespace weft::kernels {
namespace {

struct InstructionSet {
  std::string_view name;
  int64_t target;  // Highway's bit; of two, the lower one is the better set
};

constexpr std::array kSets = {InstructionSet{"avx512", HWY_AVX3}, InstructionSet{"avx2", HWY_AVX2},
                              InstructionSet{"baseline", HWY_SCALAR}};

/// Highway's answer chooses among all that the machine has, whatever the limit: choose again.
int64_t supported_targets() {
  const int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);
  return targets;
}

}  // namespace

void limit_instruction_set(std::string_view name) {
  for (const InstructionSet& set : kSets) {
    if (set.name != name) continue;
    hwy::DisableTargets(0);
    WEFT_CHECK(set.target == HWY_SCALAR || (supported_targets() & set.target) != 0,
               "WEFT_INSTRUCTION_SET: this machine has no {}", name);
    hwy::DisableTargets(set.target - 1);
    supported_targets();
    return;
  }
  WEFT_FAIL("WEFT_INSTRUCTION_SET: expected avx512, avx2 or baseline, got \"{}\"", name);
}

void apply_instruction_set_of_environment() {
  static const bool applied = [] {
    if (const char* name = std::getenv("WEFT_INSTRUCTION_SET")) limit_instruction_set(name);
    return true;
  }();
  (void)applied;
}

std::string_view instruction_set() {
  for (const InstructionSet& set : kSets) {
    if ((supported_targets() & set.target) != 0) return set.name;
  }
  return "baseline";
}

}  // namespace weft::kernels
