// When cuDNN can compute layer normalisation.
#pragma once

#include "kernels/layer_norm/layer_norm.h"

namespace weft::kernels {

/// Contiguous rows with gamma and beta of one dtype, f32, f16 or bf16, on a device; no residual and
/// no other gradient; forward with mean and rstd, backward with every gradient. The library was
/// found, and has a plan.
bool layer_norm_fits_cudnn(const LayerNormProblem& problem);

}  // namespace weft::kernels
