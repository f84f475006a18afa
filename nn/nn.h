// Everything of weft::nn.
#pragma once

#include "nn/class_name.h"  // IWYU pragma: export
#include "nn/init.h"        // IWYU pragma: export
#include "nn/layers.h"      // IWYU pragma: export
#include "nn/loss.h"        // IWYU pragma: export
#include "nn/module.h"      // IWYU pragma: export
#include "nn/rms_norm.h"    // IWYU pragma: export
#include "nn/rotary.h"      // IWYU pragma: export
#include "nn/structure.h"   // IWYU pragma: export
