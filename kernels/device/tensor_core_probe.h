// Dot products on the tensor cores of a CUDA device, one mma instruction each, to compare hardware
// with numerics/tensor_core.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"

namespace weft::kernels {

/// Products of one instruction: 16 for f16 and bf16, 8 for tf32, 32 for fp8.
int tensor_core_probe_k(DType input);

/// d[i] = c[i] + sum_j a[i k + j] b[i k + j], by mma.sync m16n8 with k = tensor_core_probe_k(input)
/// and the row and column of one corner. Values are rounded to `input` first, c to `output` (f32,
/// or f16 where input is f16 or fp8). fp8 needs compute capability 8.9. Throws Error with CUDA's
/// reason where the device cannot.
std::vector<float> tensor_core_probe(int device, DType input, DType output,
                                     std::span<const float> a, std::span<const float> b,
                                     std::span<const float> c);

}  // namespace weft::kernels
