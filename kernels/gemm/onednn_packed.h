// onednn_matmul() for a B that other products have, too.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {

/// onednn_matmul(), where B lies in the memory of `owner`: it is brought into the blocked layout
/// once for many calls where a PackedWeights asks for it.
void onednn_packed_matmul(const MatmulKey& key, const void* a, const void* b, void* c,
                          const float* bias, const Tensor& owner);

}  // namespace weft::kernels
