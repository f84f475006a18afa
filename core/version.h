// The version of Weft: the only place that holds the number. Names of files, the packages for CMake
// and pkg-config, and `weft --version` are made from these three lines.
#pragma once

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

/// For `#if WEFT_VERSION_NUMBER >= 200`, which is 0.2.0: two digits each for minor and patch.
#define WEFT_VERSION_NUMBER \
  (WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH)

#define WEFT_VERSION_TEXT_(number) #number
#define WEFT_VERSION_TEXT(number) WEFT_VERSION_TEXT_(number)

/// MAJOR.MINOR.PATCH, as text.
#define WEFT_VERSION                    \
  WEFT_VERSION_TEXT(WEFT_VERSION_MAJOR) \
  "." WEFT_VERSION_TEXT(WEFT_VERSION_MINOR) "." WEFT_VERSION_TEXT(WEFT_VERSION_PATCH)
