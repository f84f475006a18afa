// Attention as a graph of cuDNN's, which its fused engines recognise.
//
// Only for sources of the cuda flavour.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/device/cudnn_graph.h"

#if __has_include(<cudnn.h>)
namespace weft::kernels {

/// Ids of the graphs' memory. delta: f32 [B, H, Tq, 1], dense, that backward needs beside the
/// problem's tensors.
enum AttentionCudnnId : int64_t {
  kCudnnQ = 1,
  kCudnnK,
  kCudnnV,
  kCudnnOut,
  kCudnnLse,
  kCudnnDout,
  kCudnnDelta,
  kCudnnDq,
  kCudnnDk,
  kCudnnDv
};

/// Reads the problem's shapes, layouts and options, not its memory.
CudnnGraph attention_cudnn_graph(const AttentionProblem& problem);

}  // namespace weft::kernels
#endif
