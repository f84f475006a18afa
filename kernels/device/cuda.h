// The one header that a .cu file includes to be a CUDA kernel on a GPU and on the emulator.
//
//   #include "kernels/device/cuda.h"
//
//   __global__ void sum_kernel(const float* x, float* y, int n) {
//     WEFT_SHARED(float, partial, [32]);            // __shared__ float partial[32];
//     WEFT_DYNAMIC_SHARED(float, tile);             // extern __shared__ float tile[];
//     ...
//     __syncthreads();
//   }
//
//   WEFT_LAUNCH(sum_kernel, grid, block, shared_bytes, stream, x, y, n);
//   WEFT_LAUNCH((scale_kernel<float, 4>), grid, block, 0, stream, ...);  // commas: parentheses
//   WEFT_LAUNCH_CLUSTER(sum_kernel, cluster, grid, block, shared_bytes, stream, x, y, n);
//
// The second argument of WEFT_SHARED is a name, the third, if any, the array's dimensions. Dynamic
// shared memory is aligned to 1024 bytes; a launch asks for what it needs up to 227 KiB. `stream`
// is a cudaStream_t or a pointer that is one. A launch throws weft::Error, naming the kernel, when
// it is refused; arguments are converted to the kernel's parameter types.
//
// A kernel takes a large parameter as WEFT_GRID_CONSTANT(Type) name: one for all threads, which may
// only read it. As `const __grid_constant__ Type name` an emulated thread would have its own copy.
//
// With nvcc this is CUDA's own vocabulary; with the host compiler, in the host flavour, the
// emulator's (kernels/simt/builtins.h). A .cu outside kernels/device and kernels/simt never asks
// which. Everything in an anonymous namespace or inline; no .cc file includes this.
#pragma once

#include "kernels/device/launch.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

// For a function that an unrolled loop calls often: inlined, its copies take ptxas minutes.
#define WEFT_NOINLINE __noinline__
#define WEFT_GRID_CONSTANT(...) const __grid_constant__ __VA_ARGS__
#define WEFT_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define WEFT_DYNAMIC_SHARED(type, name)                          \
  extern __shared__ __align__(1024) unsigned char weft_shared[]; \
  type* const name = reinterpret_cast<type*>(weft_shared)

#else

#include "kernels/simt/builtins.h"

#define WEFT_NOINLINE [[gnu::noinline]]
#define WEFT_GRID_CONSTANT(...) const __VA_ARGS__&
#define WEFT_SHARED(type, name, ...)                                          \
  static const char name##_declaration = 0;                                   \
  using name##_type = type __VA_ARGS__;                                       \
  name##_type& name = *static_cast<name##_type*>(::weft::simt::static_shared( \
      &name##_declaration, sizeof(name##_type), std::max<size_t>(alignof(name##_type), 16)))
#define WEFT_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::weft::simt::dynamic_shared())

#endif

#define WEFT_LAUNCH_CLUSTER(kernel, cluster, grid, block, shared_bytes, stream, ...) \
  ::weft::kernels::launch({#kernel, grid, block, cluster, shared_bytes, stream},     \
                          kernel __VA_OPT__(, ) __VA_ARGS__)
#define WEFT_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  WEFT_LAUNCH_CLUSTER(kernel, dim3(1), grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)
