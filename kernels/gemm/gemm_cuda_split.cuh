// Split K: few large tiles leave most of a GPU idle when K is long, as in the gradient of a weight.
// Blocks then sum parts of K into an f32 workspace, and a second kernel adds the parts in order:
// the same bits in every run, as no atomics of floats would give.
#pragma once

#include "kernels/gemm/gemm_bias_gradient.cuh"
#include "kernels/gemm/gemm_tiling.h"

namespace weft::kernels {

/// Parts that K is cut into: enough to fill the device, none with fewer than kMinDepth of K, so
/// that the sums outweigh the workspace's traffic.
struct KSplit {
  int parts = 1;
  int64_t depth = 0;  // of a part, a multiple of the tile's; the last may be shorter

  static KSplit choose(int64_t output_tiles, int64_t k, int64_t tile_depth) {
    constexpr int64_t kMinDepth = 256;
    const int64_t wanted = std::max<int64_t>(1, kTargetBlocks / std::max<int64_t>(1, output_tiles));
    const int64_t parts = std::clamp<int64_t>(k / kMinDepth, 1, wanted);
    const int64_t depth = (k / parts + tile_depth - 1) / tile_depth * tile_depth;
    if (parts == 1 || depth == 0) return {1, k};
    return {static_cast<int>((k + depth - 1) / depth), depth};
  }
};

/// A part's sums: [batches, parts, m, n] in f32.
struct KSplitWorkspace {
  float* sums = nullptr;

  __device__ float* at(const GemmArguments& p, int parts, int64_t batch, int part, int64_t row,
                       int64_t column) const {
    return sums + (((batch * parts + part) * p.m + row) * p.n + column);
  }
};

namespace split_k {

constexpr int kThreads = 256;

__global__ static void __launch_bounds__(kThreads)
    gemm_join_kernel(const __grid_constant__ GemmArguments p, KSplitWorkspace workspace,
                     int parts) {
  const int64_t total = p.batches * p.m * p.n;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += step) {
    const int64_t column = i % p.n, row = i / p.n % p.m, batch = i / (p.n * p.m);
    float sum = 0;
    for (int part = 0; part < parts; ++part) {
      sum += *workspace.at(p, parts, batch, part, row, column);
    }
    p.finish(p.output(batch), row, column, sum);
  }
}

}  // namespace split_k

/// Memory that a kernel leaves its sums in, and the kernels that finish them: parts of K are added,
/// C's columns summed.
struct Remainder {
  Tensor parts, column_sums;  // undefined where they are not needed
  KSplit split;
  KSplitWorkspace workspace;
  ColumnPartials<float> partials;

  /// groups: those of rows whose columns the kernel sums itself; 0 where it does not.
  Remainder(const GemmProblem& problem, const GemmArguments& p, const KSplit& split, int64_t groups)
      : split(split) {
    if (split.parts > 1) {
      parts = Tensor::empty({p.batches, split.parts, p.m, p.n}, DType::f32, problem.device());
      workspace.sums = parts.data<float>();
    } else if (p.sums_columns && groups > 0) {
      column_sums = Tensor::empty({groups, p.n}, DType::f32, problem.device());
      partials.sums = column_sums.data<float>();
    }
  }
  void finish(const GemmProblem& problem, const GemmArguments& p) const {
    if (split.parts > 1) {
      constexpr int64_t kMaxBlocks = 1024;
      const auto blocks = static_cast<unsigned>(
          std::min<int64_t>(kMaxBlocks, tiles(p.batches * p.m * p.n, split_k::kThreads)));
      WEFT_LAUNCH(split_k::gemm_join_kernel, blocks, split_k::kThreads, 0,
                  current_stream_handle(problem.device()), p, workspace, split.parts);
    }
    if (column_sums.defined()) return join_columns<float>(problem, p, column_sums);
    sum_columns<float>(problem, p);
  }
};

}  // namespace weft::kernels
