// Patch embedding: the CPU's variant is made of copies and a matrix product, which run here as they
// do there.
#include "kernels/conv2d/conv2d_shared.h"

namespace weft::kernels {

void conv2d_cuda_patches(const Conv2dProblem& p) { conv2d_as_patches(p); }

}  // namespace weft::kernels
