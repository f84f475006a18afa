// Compiles a source once for each instruction set of CPU kernels: baseline x86-64, AVX2 and
// AVX-512. The ones left out would double the build's time for machines older than 2013.
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "<the source's own path>"
//   #include "core/simd/targets_inl.h"
//
// No #pragma once: <hwy/foreach_target.h> includes the source again for each instruction set, and
// <hwy/highway.h> looks different in each.

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif

// The order matters.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
