// cuDNN, opened when first asked for: the yardstick of our own kernels, and a choice.
//
// Its heuristics rank the algorithms; the first that always gives the same bits, and multiplies
// operands as they are, is taken: neither TF32 nor what transforms and rounds them first.
#include "kernels/conv2d/conv2d.h"
#include "kernels/device/cudnn.h"

#if __has_include(<cudnn.h>)

#include <limits>
#include <span>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

CudnnOwned<cudnnTensorDescriptor_t> tensor_of(const Tensor& t) {
  return cudnn_dense(t.dtype(), t.size(0), t.size(1), t.size(2), t.size(3));
}

CudnnOwned<cudnnTensorDescriptor_t> per_channel(const Tensor& bias) {
  return cudnn_dense(bias.dtype(), 1, bias.size(0), 1, 1);
}

CudnnOwned<cudnnFilterDescriptor_t> filter_of(const Tensor& t) {
  Cudnn& dnn = cudnn();
  cudnnFilterDescriptor_t raw = nullptr;
  dnn.check(dnn.cudnnCreateFilterDescriptor(&raw), "cudnnCreateFilterDescriptor");
  CudnnOwned<cudnnFilterDescriptor_t> owned(raw, dnn.cudnnDestroyFilterDescriptor);
  const auto size = [&](int d) { return static_cast<int>(t.size(d)); };
  dnn.check(dnn.cudnnSetFilter4dDescriptor(raw, cudnn_type(t.dtype()), CUDNN_TENSOR_NCHW, size(0),
                                           size(1), size(2), size(3)),
            "cudnnSetFilter4dDescriptor");
  return owned;
}

CudnnOwned<cudnnConvolutionDescriptor_t> convolution_of(const Conv2dProblem& p) {
  Cudnn& dnn = cudnn();
  cudnnConvolutionDescriptor_t raw = nullptr;
  dnn.check(dnn.cudnnCreateConvolutionDescriptor(&raw), "cudnnCreateConvolutionDescriptor");
  CudnnOwned<cudnnConvolutionDescriptor_t> owned(raw, dnn.cudnnDestroyConvolutionDescriptor);
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  dnn.check(
      dnn.cudnnSetConvolution2dDescriptor(
          raw, number(p.padding[0]), number(p.padding[1]), number(p.stride[0]), number(p.stride[1]),
          number(p.dilation[0]), number(p.dilation[1]), CUDNN_CROSS_CORRELATION,
          p.dtype() == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
      "cudnnSetConvolution2dDescriptor");
  dnn.check(dnn.cudnnSetConvolutionGroupCount(raw, number(p.groups)),
            "cudnnSetConvolutionGroupCount");
  dnn.check(dnn.cudnnSetConvolutionMathType(
                raw, itemsize(p.dtype()) == 2 ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH),
            "cudnnSetConvolutionMathType");
  return owned;
}

/// FFT, Winograd: integers' sums are not exact.
bool transforms(cudnnConvolutionFwdAlgo_t a) { return a >= CUDNN_CONVOLUTION_FWD_ALGO_FFT; }
bool transforms(cudnnConvolutionBwdDataAlgo_t a) {
  return a >= CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT;
}
bool transforms(cudnnConvolutionBwdFilterAlgo_t a) {
  return a >= CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT;
}

/// Takes the best of the algorithms that `list(most, found, results)` ranks and calls
/// compute(algorithm, workspace, its bytes). call: the function that compute calls.
template <class Performance, class List, class Compute>
void with_best(const Conv2dProblem& p, cudnnConvolutionDescriptor_t convolution, const char* call,
               const List& list, const Compute& compute) {
  constexpr size_t kMostWorkspace = size_t{1} << 30;
  std::vector<Performance> results(16);
  int found = 0;
  cudnn().check(list(static_cast<int>(results.size()), &found, results.data()), call);
  for (const Performance& best : std::span(results).first(found)) {
    if (best.status != CUDNN_STATUS_SUCCESS || best.determinism != CUDNN_DETERMINISTIC ||
        transforms(best.algo) || best.memory > kMostWorkspace) {
      continue;
    }
    cudnn().check(cudnn().cudnnSetConvolutionMathType(convolution, best.mathType), call);
    const Tensor workspace =
        Tensor::empty({static_cast<int64_t>(best.memory)}, DType::u8, p.device());
    return cudnn().check(compute(best.algo, workspace.raw(), best.memory), call);
  }
  WEFT_FAIL("cuDNN has no deterministic algorithm without transforms for {}", p.describe());
}

}  // namespace

bool conv2d_fits_cudnn(const Conv2dProblem& p) {
  if (!gemm_is<GemmArithmetic::kIeee>(p)) return false;
  // The bias is added to what has been rounded to 16 bits.
  if (p.pass() == Conv2dPass::kForward && p.bias.defined() && itemsize(p.dtype()) == 2)
    return false;
  // cudnnConvolutionBackwardBias knows no bf16.
  if (p.dbias.defined() && p.dtype() == DType::bf16) return false;
  for (const Tensor* t : {&p.x, &p.w, &p.bias, &p.y, &p.dy, &p.dx, &p.dw, &p.dbias}) {
    if (!t->defined()) continue;
    if (!t->is_contiguous() || t->dtype() != p.dtype()) return false;
    if (t->numel() == 0 || t->numel() > std::numeric_limits<int>::max()) return false;
  }
  for (int d = 0; d < 2; ++d) {
    if (p.result().size(2 + d) != conv2d_output_size(p.image().size(2 + d), p.filter().size(2 + d),
                                                     p.stride[d], p.padding[d], p.dilation[d])) {
      return false;
    }
  }
  return cudnn().library.is_open();
}

void conv2d_cudnn(const Conv2dProblem& p) {
  Cudnn& dnn = cudnn();
  const cudnnHandle_t handle = dnn.handle(p.device());
  const auto image = tensor_of(p.image()), result = tensor_of(p.result());
  const auto filter = filter_of(p.filter());
  const auto convolution = convolution_of(p);
  const CudnnScalar one(p.dtype(), 1), zero(p.dtype(), 0);
  switch (p.pass()) {
    case Conv2dPass::kForward:
      with_best<cudnnConvolutionFwdAlgoPerf_t>(
          p, convolution.get(), "cudnnConvolutionForward",
          [&](auto... out) {
            return dnn.cudnnGetConvolutionForwardAlgorithm_v7(
                handle, image.get(), filter.get(), convolution.get(), result.get(), out...);
          },
          [&](auto algorithm, auto... workspace) {
            return dnn.cudnnConvolutionForward(
                handle, one.get(), image.get(), p.x.raw(), filter.get(), p.w.raw(),
                convolution.get(), algorithm, workspace..., zero.get(), result.get(), p.y.raw());
          });
      if (!p.bias.defined()) return;
      return dnn.check(dnn.cudnnAddTensor(handle, one.get(), per_channel(p.bias).get(),
                                          p.bias.raw(), one.get(), result.get(), p.y.raw()),
                       "cudnnAddTensor");
    case Conv2dPass::kDataGradient:
      return with_best<cudnnConvolutionBwdDataAlgoPerf_t>(
          p, convolution.get(), "cudnnConvolutionBackwardData",
          [&](auto... out) {
            return dnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(
                handle, filter.get(), result.get(), convolution.get(), image.get(), out...);
          },
          [&](auto algorithm, auto... workspace) {
            return dnn.cudnnConvolutionBackwardData(
                handle, one.get(), filter.get(), p.w.raw(), result.get(), p.dy.raw(),
                convolution.get(), algorithm, workspace..., zero.get(), image.get(), p.dx.raw());
          });
    case Conv2dPass::kWeightGradient:
      with_best<cudnnConvolutionBwdFilterAlgoPerf_t>(
          p, convolution.get(), "cudnnConvolutionBackwardFilter",
          [&](auto... out) {
            return dnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                handle, image.get(), result.get(), convolution.get(), filter.get(), out...);
          },
          [&](auto algorithm, auto... workspace) {
            return dnn.cudnnConvolutionBackwardFilter(
                handle, one.get(), image.get(), p.x.raw(), result.get(), p.dy.raw(),
                convolution.get(), algorithm, workspace..., zero.get(), filter.get(), p.dw.raw());
          });
      if (!p.dbias.defined()) return;
      return dnn.check(
          dnn.cudnnConvolutionBackwardBias(handle, one.get(), result.get(), p.dy.raw(), zero.get(),
                                           per_channel(p.dbias).get(), p.dbias.raw()),
          "cudnnConvolutionBackwardBias");
  }
}

}  // namespace weft::kernels

#else
WEFT_WITHOUT_CUDNN(conv2d, Conv2dProblem)
#endif
