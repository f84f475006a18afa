// For layers of which forward() is called in the place of operator().
#pragma once

#include "nn/module.h"

namespace weft::nn {

/// Whether something stands in for the module and has not called this forward() itself: unrouted()
/// is what the caller means then. Of a layer that is cut over ranks forward() alone would give this
/// rank's part, or a part of a sum.
bool is_passed_by(const Module& module);

}  // namespace weft::nn
