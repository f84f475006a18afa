// When cuDNN can compute a convolution.
#pragma once

#include "kernels/conv2d/conv2d.h"

namespace weft::kernels {

/// ieee numerics, contiguous tensors of one dtype, biases too, the symmetric output size, no empty
/// tensor; and the library was found.
bool conv2d_fits_cudnn(const Conv2dProblem& problem);

}  // namespace weft::kernels
