// Tests that lack something optional say so, and are counted: `./weft test` adds up these lines.
#pragma once

#include <cstdio>

/// Ends the test case as skipped: WEFT_SKIP("CIFAR-10 images: WEFT_TEST_DATA is not set").
#define WEFT_SKIP(reason)                 \
  do {                                    \
    std::printf("SKIPPED: %s\n", reason); \
    return;                               \
  } while (false)
