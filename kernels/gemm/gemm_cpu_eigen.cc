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
void multiply(const GemmProblem& p, const GemmBatch& batch, const Tensor& bias) {
  const int64_t m = batch.c.first.rows, n = batch.c.first.cols;
  const int64_t tiles_m = (m + kTileRows - 1) / kTileRows;
  const int64_t tiles_n = (n + kTileCols - 1) / kTileCols;
  const int64_t work = std::min(m, kTileRows) * std::min(n, kTileCols) * p.k();
  const int64_t grain = std::max<int64_t>(1, 65536 / work);
  parallel_for(batch.size() * tiles_m * tiles_n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / (tiles_m * tiles_n);
      const int64_t row = task / tiles_n % tiles_m * kTileRows;
      const int64_t col = task % tiles_n * kTileCols;
      const int64_t rows = std::min(kTileRows, m - row), cols = std::min(kTileCols, n - col);
      multiply_tile<T>(batch.a.at(i).row_block(row, rows), batch.b.at(i).block(0, p.k(), col, cols),
                       bias.defined() ? bias.data<T>() + col : nullptr, p.accumulate,
                       batch.sums().at(i).block(row, rows, col, cols));
    }
  });
}

}  // namespace

void gemm_cpu_eigen(const GemmProblem& problem) {
  gemm_by_batch(problem, problem.dtype() == DType::f64 ? multiply<double> : multiply<float>);
}

}  // namespace weft::kernels
