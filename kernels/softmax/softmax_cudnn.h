// When cuDNN can compute a softmax.
#pragma once

#include "kernels/softmax/softmax.h"

namespace weft::kernels {

/// Contiguous tensors of up to 2^31 - 1 elements, and some; and the library was found.
bool softmax_fits_cudnn(const SoftmaxProblem& problem);

}  // namespace weft::kernels
