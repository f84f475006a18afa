#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/device/tensor_map_check.h"

namespace weft {
namespace {

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
    case DType::tf32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    default:
      WEFT_CHECK(itemsize(dtype) == 1, "tensor map: {} elements are not supported", dtype);
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

/// From the driver, so that the program links without it.
Encode encode_function() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    WEFT_CHECK(error == cudaSuccess && result == cudaDriverEntryPointSuccess,
               "the CUDA driver has no cuTensorMapEncodeTiled: expected one for CUDA 12 or later");
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

/// The driver's functions need a context that is current in this thread. The runtime makes its own
/// current at the thread's first call, which may be yet to come.
void have_context() {
  thread_local const cudaError_t error = cudaFree(nullptr);
  WEFT_CHECK(error == cudaSuccess, "tensor map: no context: {}", cudaGetErrorString(error));
}

}  // namespace

TensorMap make_tensor_map(const TensorMapSpec& spec) {
  check_tensor_map(spec);
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B,
                                              CU_TENSOR_MAP_SWIZZLE_128B};
  const cuuint32_t element_strides[TensorMapSpec::kMaxRank] = {1, 1, 1, 1, 1};
  cuuint64_t dims[TensorMapSpec::kMaxRank], strides[TensorMapSpec::kMaxRank - 1] = {};
  for (int d = 0; d < spec.rank; ++d) dims[d] = spec.dims[d];
  for (int d = 0; d + 1 < spec.rank; ++d) strides[d] = spec.strides[d];
  TensorMap map;
  have_context();
  const CUresult result =
      encode_function()(&map, data_type(spec.dtype), static_cast<cuuint32_t>(spec.rank),
                        const_cast<void*>(spec.base), dims, strides, spec.box, element_strides,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzles[static_cast<int>(spec.swizzle)],
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WEFT_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed with error {}",
             static_cast<int>(result));
  return map;
}

}  // namespace weft
