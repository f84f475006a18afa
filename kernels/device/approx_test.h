// Kernels of approx_test.cu, which evaluate an approximation element by element.
#pragma once

#include "core/tensor.h"

namespace weft::kernels {

/// y[i] = the device's approximation at x[i]; both f32 [n] on one CUDA device.
void ex2_approximations(const Tensor& x, const Tensor& y);
void lg2_approximations(const Tensor& x, const Tensor& y);
void rcp_approximations(const Tensor& x, const Tensor& y);
void rsqrt_approximations(const Tensor& x, const Tensor& y);
void tanh_approximations(const Tensor& x, const Tensor& y);

}  // namespace weft::kernels
