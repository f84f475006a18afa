// When cuBLASLt can compute a matrix product.
#pragma once

#include "kernels/gemm/gemm.h"

namespace weft::kernels {

/// No GELU, a dense dimension in every matrix, one stride for the batch, a bias of C's dtype; and
/// the library was found.
bool gemm_fits_cublas(const GemmProblem& problem);

}  // namespace weft::kernels
