// f32 operands as TF32 has them.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/matmul_numerics.h"

namespace weft::kernels {

/// x itself for Tf32::kOff and for other dtypes than f32. Else a tensor of x's shape whose elements
/// have 10 mantissa bits: truncated toward zero, or rounded to nearest, ties away. Dimensions of
/// stride 0 stay so, and a matrix whose columns lie side by side keeps that layout. NaNs stay NaNs.
Tensor tf32_operand(const Tensor& x, Tf32 rounding);

}  // namespace weft::kernels
