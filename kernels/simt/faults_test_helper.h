// An inline helper of a kernel, in a header: its accesses must be seen, too.
#pragma once

#include "kernels/device/cuda.h"

namespace weft::kernels {

__device__ inline void publish(float* shared, float value) { shared[threadIdx.x] = value; }
__device__ inline float neighbour(const float* shared) {
  return shared[(threadIdx.x + 37) % blockDim.x];
}

}  // namespace weft::kernels
