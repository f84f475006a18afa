// Layer normalisation as a graph of cuDNN's.
//
// Only for sources of the cuda flavour.
#pragma once

#include "kernels/device/cudnn_graph.h"
#include "kernels/layer_norm/layer_norm.h"

#if __has_include(<cudnn.h>)
namespace weft::kernels {

/// Ids of the graphs' memory: the problem's tensors.
enum LayerNormCudnnId : int64_t {
  kCudnnX = 1,
  kCudnnGamma,
  kCudnnBeta,
  kCudnnY,
  kCudnnMean,
  kCudnnRstd,
  kCudnnDy,
  kCudnnDx,
  kCudnnDgamma,
  kCudnnDbeta
};

/// Reads the problem's shapes, dtypes and eps, not its memory.
CudnnGraph layer_norm_cudnn_graph(const LayerNormProblem& problem);

}  // namespace weft::kernels
#endif
