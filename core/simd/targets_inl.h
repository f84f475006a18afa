// Compiles a source once for each instruction set of CPU kernels: baseline x86-64, AVX2 and
// AVX-512; on arm64 NEON. The ones left out would double the build's time for machines older than
// 2013; and vectors of SVE, whose size nobody knows, cannot stand in arrays.
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "<the source's own path>"
//   #include "core/simd/targets_inl.h"
//
// No #pragma once: <hwy/foreach_target.h> includes the source again for each instruction set, and
// <hwy/highway.h> looks different in each.

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

// The order matters.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
