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

// 768 columns, the least of a ViT-B/16, are one step of a block's.
constexpr int kThreads = 192, kColumns = 4;

/// Blocks take rows in turns, threads kColumns columns of each.
__global__ static void __launch_bounds__(kThreads)
    gemm_join_kernel(const __grid_constant__ GemmArguments p, KSplitWorkspace workspace, int parts,
                     bool has_vectors) {
  using Columns = Pack<float, kColumns>;
  const int64_t rows = p.batches * p.m, part_size = p.m * p.n;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t batch = r / p.m, row = r % p.m;
    const float* const sums = workspace.at(p, parts, batch, 0, row, 0);
    const GemmArguments::Output to = p.output(batch);
    for (int64_t column = kColumns * threadIdx.x; column < p.n; column += kColumns * kThreads) {
      const float* from = sums + column;
      if (has_vectors) {
        Columns sum = {};
#pragma unroll 4
        for (int part = 0; part < parts; ++part, from += part_size) {
          const Columns more = *reinterpret_cast<const Columns*>(from);
#pragma unroll
          for (int i = 0; i < kColumns; ++i) sum.values[i] += more.values[i];
        }
        *reinterpret_cast<Columns*>(static_cast<float*>(p.c.elements.data) + to.c + row * p.c.row +
                                    column) = sum;
        continue;
      }
      const int count = static_cast<int>(min(int64_t{kColumns}, p.n - column));
      for (int i = 0; i < count; ++i, ++from) {
        float sum = 0;
        for (int part = 0; part < parts; ++part) sum += from[part * part_size];
        p.finish(to, row, column + i, sum);
      }
    }
  }
}

/// Are a row's sums C's, in vectors that are aligned in both?
inline bool joins_vectors(const GemmProblem& problem, const GemmArguments& p) {
  const Tensor& c = problem.c;
  bool is_plain = c.dtype() == DType::f32 && p.epilogue == Epilogue::kNone && !p.accumulate &&
                  p.scale == 1 && !problem.bias.defined() && !problem.residual.defined();
  for (int d = 0; d + 1 < c.dim(); ++d) is_plain = is_plain && c.stride(d) % kColumns == 0;
  return is_plain && p.c.column == 1 && p.n % kColumns == 0 &&
         reinterpret_cast<uintptr_t>(c.raw()) % sizeof(Pack<float, kColumns>) == 0;
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
      constexpr int64_t kMaxBlocks = 1 << 16;
      const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, p.batches * p.m));
      WEFT_LAUNCH(split_k::gemm_join_kernel, blocks, split_k::kThreads, 0,
                  current_stream_handle(problem.device()), p, workspace, split.parts,
                  split_k::joins_vectors(problem, p));
    }
    if (column_sums.defined()) return join_columns<float>(problem, p, column_sums);
    sum_columns<float>(problem, p);
  }
};

}  // namespace weft::kernels
