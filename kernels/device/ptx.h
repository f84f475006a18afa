// How the PTX wrappers of this folder are written: the instruction, and beside it its emulation.
//
//   __device__ __forceinline__ void wgmma_fence(WEFT_SITE) {
//     WEFT_PTX(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"), simt::wgmma_fence(site));
//   }
//
// nvcc sees the first argument, the host compiler the rest; `site` is the caller's place in the
// source, for the emulator's findings. A .cu that calls one says the architecture that PTX gives
// the instruction to in its cuda_library's `archs`.
#pragma once

#include <cstdint>

#include "kernels/device/cuda.h"

#ifndef __CUDACC__
#include "kernels/simt/async.h"
#include "kernels/simt/tensor_core.h"
#endif

#ifdef __CUDACC__
#define WEFT_PTX(instruction, ...) instruction
#define WEFT_SITE
#define WEFT_AND_SITE
#define WEFT_PASS_SITE
#else
#define WEFT_PTX(instruction, ...) __VA_ARGS__
#define WEFT_SITE ::weft::simt::Site site = ::weft::simt::Site::current()
#define WEFT_AND_SITE , WEFT_SITE
#define WEFT_PASS_SITE , site
#endif

namespace weft::ptx {

/// The 32-bit address of shared memory that instructions and descriptors take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return WEFT_PTX(static_cast<uint32_t>(__cvta_generic_to_shared(pointer)),
                  simt::shared_address(pointer));
}

}  // namespace weft::ptx
