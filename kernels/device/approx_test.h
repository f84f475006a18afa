// The kernel of approx_test.cu, which evaluates the approximation element by element.
#pragma once

#include "core/tensor.h"

namespace weft::kernels {

/// y[i] = the device's 2^x[i]; both f32 [n] on one CUDA device.
void ex2_approximations(const Tensor& x, const Tensor& y);

}  // namespace weft::kernels
