// What references of elementwise ops share.
#pragma once

#include "core/dtype.h"

namespace weft::kernels {

/// A number of arithmetic type f64, f32 or i64 as it reads after being stored in dtype `to` (see
/// kernels/copy/copy.h). Integers below 2^53.
double as_stored(double value, DType from, DType to);

/// A result rounded to the arithmetic type: to f32, or left alone.
double rounded_to(double value, DType arithmetic_type);

}  // namespace weft::kernels
