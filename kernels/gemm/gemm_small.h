// When gemm_cpu_small takes a product.
#pragma once

#include "kernels/gemm/gemm.h"

namespace weft::kernels {

/// Products in IEEE arithmetic for which a call of oneDNN, or Eigen's copies, cost more than they
/// gain: measured, see gemm_cpu_small.cc.
bool gemm_fits_small(const GemmProblem& problem);

}  // namespace weft::kernels
