// The instruction sets that CPU kernels are compiled for: baseline x86-64, AVX2 and AVX-512.
// Included before <hwy/foreach_target.h>. The ones left out would double the build's time for
// machines older than 2013.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
