// Which instruction set CPU kernels may use.
//
// Kernels are compiled for the instruction sets of core/simd/targets_inl.h and take the best that
// the machine has, or that WEFT_INSTRUCTION_SET=avx512, avx2 or baseline allows, read when the
// program or an op's test starts. oneDNN's own limit is ONEDNN_MAX_CPU_ISA.
#pragma once

#include <string_view>

namespace weft::kernels {

/// From now on kernels take nothing better than "avx512", "avx2" or "baseline". Not while kernels
/// run. Throws Error naming an unknown set, or one that this machine lacks.
void limit_instruction_set(std::string_view name);

/// Follows the environment, once however often it is called.
void apply_instruction_set_of_environment();

/// The best one that kernels take: "avx512", "avx2" or "baseline".
std::string_view instruction_set();

}  // namespace weft::kernels
