// Eigen on blocks: every dtype, any strides, any CPU.
//
// C is cut into tiles, one thread each; both operands are widened to f32 (f64 for f64) a block of K
// at a time, so that Eigen sees dense matrices of one type. The order of summation depends on the
// shape alone.
#define EIGEN_DONT_PARALLELIZE
#include <algorithm>
#include <eigen3/Eigen/Core>

#include "core/parallel.h"
#include "kernels/gemm/gemm_batch.h"

namespace weft::kernels {
namespace {

// A tile of C and the blocks of A and B that make it fit a core's second-level cache.
constexpr int64_t kTileRows = 128, kTileCols = 256, kBlockK = 256;

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Matrix matrix_of(RowMajor<T>& m) {
  return dense_matrix(dtype_of<T>(), m.data(), m.rows(), m.cols());
}

template <class T>
void multiply_tile(const Matrix& a, const Matrix& b, const T* bias, bool accumulate,
                   const Matrix& c) {
  RowMajor<T> sum(c.rows, c.cols), block_a, block_b;
  sum.setZero();
  for (int64_t k = 0; k < a.cols; k += kBlockK) {
    const int64_t depth = std::min(kBlockK, a.cols - k);
    block_a.resize(a.rows, depth);
    block_b.resize(depth, b.cols);
    copy_matrix(a.block(0, a.rows, k, depth), matrix_of(block_a));
    copy_matrix(b.block(k, depth, 0, b.cols), matrix_of(block_b));
    sum.noalias() += block_a * block_b;
  }
  add_bias_matrix(matrix_of(sum), bias, accumulate, c);
}

template <class T>
void multiply(const GemmProblem& p, const GemmBatch& batch) {
  const Tensor bias = gemm_bias(p);
  const bool to_aux = p.epilogue == Epilogue::kGelu;
  const int64_t m = batch.c.rows, n = batch.c.cols;
  const int64_t tiles_m = (m + kTileRows - 1) / kTileRows;
  const int64_t tiles_n = (n + kTileCols - 1) / kTileCols;
  const int64_t work = std::min(m, kTileRows) * std::min(n, kTileCols) * batch.a.cols;
  const int64_t grain = std::max<int64_t>(1, 65536 / work);
  parallel_for(batch.size() * tiles_m * tiles_n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / (tiles_m * tiles_n);
      const int64_t row = task / tiles_n % tiles_m * kTileRows;
      const int64_t col = task % tiles_n * kTileCols;
      const int64_t rows = std::min(kTileRows, m - row), cols = std::min(kTileCols, n - col);
      const Matrix c =
          to_aux ? batch.aux.shifted(batch.aux_offsets[i]) : batch.c.shifted(batch.c_offsets[i]);
      multiply_tile<T>(batch.a.shifted(batch.a_offsets[i]).block(row, rows, 0, batch.a.cols),
                       batch.b.shifted(batch.b_offsets[i]).block(0, batch.b.rows, col, cols),
                       bias.defined() ? bias.data<T>() + col : nullptr, p.accumulate,
                       c.block(row, rows, col, cols));
    }
  });
}

}  // namespace

void gemm_cpu_eigen(const GemmProblem& asked) {
  if (finish_if_empty(asked)) return;
  const GemmProblem problem = with_residual_in_c(asked);
  const GemmBatch batch = gemm_batch(problem);
  if (problem.k() == 0) {
    gemm_without_products(problem, batch);
  } else if (problem.dtype() == DType::f64) {
    multiply<double>(problem, batch);
  } else {
    multiply<float>(problem, batch);
  }
  gemm_epilogue(problem, batch);
}

}  // namespace weft::kernels
