// Copy and cast: y[i] = x[i] in y's dtype.
//
// x, y: the same shape, any strides (a stride of 0 in x repeats), y without repeated elements; y is
// assigned (=) and shares no memory with x unless both have the same dtype, strides and offset.
// Equal dtypes move the bits unchanged. Any dtype converts to any other, exactly or with one
// rounding: between floats as core/float_formats.h says (to nearest even; tf32: ties away; fp8 does
// not saturate); integer to float to nearest even; integer to narrower integer keeps the low bits;
// float to integer truncates toward zero, saturates, and takes NaN to 0; anything to bool is x !=
// 0, so NaN is true.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct CopyProblem {
  Tensor x, y;

  DType dtype() const { return x.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const;
};

WEFT_DECLARE_OP(copy, CopyProblem);

/// Whether x and y have one dtype and unit strides in two different dimensions.
bool is_transposition(const CopyProblem& problem);

/// x itself when it is contiguous and of that dtype, else a contiguous copy.
Tensor contiguous(const Tensor& x);
Tensor contiguous(const Tensor& x, DType dtype);

/// What a kernel that writes contiguous tensors alone writes instead of y: y itself where it is
/// contiguous, or no tensor, else memory of its shape.
Tensor contiguous_output(const Tensor& y);
/// Brings it to y, if it is not y.
void finish_output(const Tensor& written, const Tensor& y);

}  // namespace weft::kernels
