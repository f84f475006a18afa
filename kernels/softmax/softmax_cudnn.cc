// cuDNN, opened when first asked for: the yardstick of our own rows kernel, and a choice.
//
// The axis is its channel: what lies before it is one dimension, what lies behind it another.
#include "kernels/device/cudnn.h"
#include "kernels/softmax/softmax.h"

#if __has_include(<cudnn.h>)

#include <limits>

namespace weft::kernels {
namespace {

CudnnOwned<cudnnTensorDescriptor_t> around_axis(const SoftmaxProblem& p) {
  const int axis = p.axis < 0 ? p.axis + p.y.dim() : p.axis;
  int64_t before = 1, behind = 1;
  for (int d = 0; d < p.y.dim(); ++d) {
    if (d < axis) before *= p.y.size(d);
    if (d > axis) behind *= p.y.size(d);
  }
  return cudnn_dense(p.dtype(), before, p.y.size(axis), behind, 1);
}

}  // namespace

bool softmax_fits_cudnn(const SoftmaxProblem& p) {
  const int64_t count = p.y.numel();
  const bool is_dense =
      p.y.is_contiguous() &&
      (p.backward() ? p.dy.is_contiguous() && p.dx.is_contiguous() : p.x.is_contiguous());
  // Along another axis than the last it rounds to 16 bits on the way.
  const bool is_last = p.axis == -1 || p.axis == p.y.dim() - 1;
  return (is_last || p.y.itemsize() > 2) && p.y.dim() > 0 && count > 0 &&
         count <= std::numeric_limits<int>::max() && is_dense && cudnn().library.is_open();
}

void softmax_cudnn(const SoftmaxProblem& p) {
  Cudnn& dnn = cudnn();
  const cudnnHandle_t handle = dnn.handle(p.device());
  const auto form = around_axis(p);
  const cudnnSoftmaxAlgorithm_t algorithm = p.log ? CUDNN_SOFTMAX_LOG : CUDNN_SOFTMAX_ACCURATE;
  const CudnnScalar one(p.dtype(), 1), zero(p.dtype(), 0);
  if (p.backward()) {
    dnn.check(dnn.cudnnSoftmaxBackward(handle, algorithm, CUDNN_SOFTMAX_MODE_CHANNEL, one.get(),
                                       form.get(), p.y.raw(), form.get(), p.dy.raw(), zero.get(),
                                       form.get(), p.dx.raw()),
              "cudnnSoftmaxBackward");
  } else {
    dnn.check(dnn.cudnnSoftmaxForward(handle, algorithm, CUDNN_SOFTMAX_MODE_CHANNEL, one.get(),
                                      form.get(), p.x.raw(), zero.get(), form.get(), p.y.raw()),
              "cudnnSoftmaxForward");
  }
}

}  // namespace weft::kernels

#else
WEFT_WITHOUT_CUDNN(softmax, SoftmaxProblem)
#endif
