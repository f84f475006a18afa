// Variants that are compiled once per instruction set.
#pragma once

#include <hwy/highway.h>

/// Defines the variant `void name(const Problem&)`: run(problem) of the best instruction set that
/// the machine has, or of WEFT_INSTRUCTION_SET. Stands last in its file, between #if HWY_ONCE and
/// #endif; run is a function in weft::kernels::HWY_NAMESPACE.
#define WEFT_HIGHWAY_VARIANT(name, Problem, run)                            \
  namespace weft::kernels {                                                 \
  HWY_EXPORT(run);                                                          \
  void name(const Problem& problem) { HWY_DYNAMIC_DISPATCH(run)(problem); } \
  }
