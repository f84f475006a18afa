#include "kernels/device/cudnn.h"

#if __has_include(<cudnn.h>)
#include <limits>
#include <map>

#include "core/error.h"
#include "core/runtime.h"
#include "core/stream.h"

namespace weft::kernels {

Cudnn& cudnn() {
  static auto& the_library = *new Cudnn;
  return the_library;
}

cudnnHandle_t Cudnn::handle(Device device) {
  // A handle carries its stream, so that threads must not share one. Never destroyed: a thread may
  // end after the driver has shut down.
  thread_local std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& entry = handles[device.index];
  const runtime::DeviceGuard guard(device.index);  // a handle belongs to the current device
  if (!entry) check(cudnnCreate(&entry), "cudnnCreate");
  check(cudnnSetStream(entry, static_cast<cudaStream_t>(current_stream_handle(device))),
        "cudnnSetStream");
  return entry;
}

void Cudnn::check(cudnnStatus_t status, const char* call) const {
  WEFT_CHECK(status == CUDNN_STATUS_SUCCESS, "{} failed: {}", call, cudnnGetErrorString(status));
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      WEFT_FAIL("cuDNN: expected f64, f32, f16 or bf16, got {}", name(dtype));
  }
}

CudnnOwned<cudnnTensorDescriptor_t> cudnn_dense(DType dtype, int64_t n, int64_t c, int64_t h,
                                                int64_t w) {
  WEFT_CHECK(n * c * h * w <= std::numeric_limits<int>::max(),
             "cuDNN: a tensor of [{}, {}, {}, {}] has more elements than an int counts", n, c, h,
             w);
  Cudnn& dnn = cudnn();
  cudnnTensorDescriptor_t raw = nullptr;
  dnn.check(dnn.cudnnCreateTensorDescriptor(&raw), "cudnnCreateTensorDescriptor");
  CudnnOwned<cudnnTensorDescriptor_t> owned(raw, dnn.cudnnDestroyTensorDescriptor);
  const auto count = [](int64_t value) { return static_cast<int>(value); };
  dnn.check(dnn.cudnnSetTensor4dDescriptorEx(raw, cudnn_type(dtype), count(n), count(c), count(h),
                                             count(w), count(c * h * w), count(h * w), count(w), 1),
            "cudnnSetTensor4dDescriptorEx");
  return owned;
}

}  // namespace weft::kernels
#endif
