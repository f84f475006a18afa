// cuDNN, opened when first asked for (kernels/device/library.h): its classic interface, and the
// functions behind that of graphs (kernels/device/cudnn_graph.h).
//
// Only for sources of the cuda flavour, the variants named NAME_cudnn.cc. Where the toolkit has no
// cudnn.h it only has what stands in for them.
#pragma once

#if __has_include(<cudnn.h>)
#include <cudnn.h>

#include <memory>
#include <type_traits>

#include "core/tensor.h"
#include "kernels/device/library.h"

namespace weft::kernels {

/// The functions used, from whichever library was found.
struct Cudnn {
  Library library{"libcudnn.so." + std::to_string(CUDNN_MAJOR), "the variants named *_cudnn"};
#define WEFT_CUDNN(name) \
  decltype(&::name) name = library.is_open() ? library.function<decltype(&::name)>(#name) : nullptr
  WEFT_CUDNN(cudnnCreate);
  WEFT_CUDNN(cudnnSetStream);
  WEFT_CUDNN(cudnnGetErrorString);
  WEFT_CUDNN(cudnnCreateTensorDescriptor);
  WEFT_CUDNN(cudnnDestroyTensorDescriptor);
  WEFT_CUDNN(cudnnSetTensor4dDescriptorEx);
  WEFT_CUDNN(cudnnCreateFilterDescriptor);
  WEFT_CUDNN(cudnnDestroyFilterDescriptor);
  WEFT_CUDNN(cudnnSetFilter4dDescriptor);
  WEFT_CUDNN(cudnnCreateConvolutionDescriptor);
  WEFT_CUDNN(cudnnDestroyConvolutionDescriptor);
  WEFT_CUDNN(cudnnSetConvolution2dDescriptor);
  WEFT_CUDNN(cudnnSetConvolutionGroupCount);
  WEFT_CUDNN(cudnnSetConvolutionMathType);
  WEFT_CUDNN(cudnnGetConvolutionForwardAlgorithm_v7);
  WEFT_CUDNN(cudnnGetConvolutionBackwardDataAlgorithm_v7);
  WEFT_CUDNN(cudnnGetConvolutionBackwardFilterAlgorithm_v7);
  WEFT_CUDNN(cudnnConvolutionForward);
  WEFT_CUDNN(cudnnConvolutionBackwardData);
  WEFT_CUDNN(cudnnConvolutionBackwardFilter);
  WEFT_CUDNN(cudnnConvolutionBackwardBias);
  WEFT_CUDNN(cudnnAddTensor);
  WEFT_CUDNN(cudnnSoftmaxForward);
  WEFT_CUDNN(cudnnSoftmaxBackward);
  WEFT_CUDNN(cudnnBackendCreateDescriptor);
  WEFT_CUDNN(cudnnBackendDestroyDescriptor);
  WEFT_CUDNN(cudnnBackendSetAttribute);
  WEFT_CUDNN(cudnnBackendGetAttribute);
  WEFT_CUDNN(cudnnBackendFinalize);
  WEFT_CUDNN(cudnnBackendExecute);
#if CUDNN_MAJOR >= 9
  WEFT_CUDNN(cudnnGetLastErrorString);
#endif
#undef WEFT_CUDNN

  /// This thread's handle for the device, on the device's current stream.
  cudnnHandle_t handle(Device device);
  /// Throws Error with the call and cuDNN's reason unless `status` is success.
  void check(cudnnStatus_t status, const char* call) const;
};

/// The one library of the process; `library.is_open()` says whether it was found.
Cudnn& cudnn();

/// A descriptor and the function that destroys it.
template <class T>
using CudnnOwned = std::unique_ptr<std::remove_pointer_t<T>, cudnnStatus_t (*)(T)>;

/// f32 f64 f16 bf16.
cudnnDataType_t cudnn_type(DType dtype);
/// A dense tensor of n x c x h x w elements. Throws Error when cuDNN refuses it.
CudnnOwned<cudnnTensorDescriptor_t> cudnn_dense(DType dtype, int64_t n, int64_t c, int64_t h,
                                                int64_t w);

/// 1 or 0 as cuDNN takes them beside tensors of a dtype: f64 for f64, else f32.
class CudnnScalar {
 public:
  CudnnScalar(DType dtype, double value) : f64_(value) {
    if (dtype != DType::f64) f32_ = static_cast<float>(value);
  }
  const void* get() const { return this; }

 private:
  union {
    double f64_;
    float f32_;
  };
};

}  // namespace weft::kernels

#else

#include "core/error.h"

/// A variant of an op where the toolkit has no cudnn.h: it takes no problem.
#define WEFT_WITHOUT_CUDNN(op, Problem)                                                     \
  namespace weft::kernels {                                                                 \
  bool op##_fits_cudnn(const Problem&) { return false; }                                    \
  void op##_cudnn(const Problem& p) { WEFT_FAIL("built without cuDNN: {}", p.describe()); } \
  }

#endif
