#include "kernels/gemm/gemm_batch.h"

#include "core/parallel.h"

namespace weft::kernels {
namespace {

constexpr int64_t kElementsPerTask = 32768;

/// Calls f(first row, rows, matrix) in parallel over blocks of rows of all matrices.
template <class F>
void for_row_blocks(int64_t matrices, int64_t rows, int64_t cols, F&& f) {
  const int64_t block = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(cols, 1));
  const int64_t blocks = (rows + block - 1) / block;
  parallel_for(matrices * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % blocks * block;
      f(row, std::min(block, rows - row), task / blocks);
    }
  });
}

/// Sums over blocks of rows, whose size the shape decides, then those in order.
template <class Acc>
void sum_columns(const GemmProblem& p, const GemmBatch& batch) {
  const int64_t n = batch.c.cols, rows = batch.c.rows;
  const int64_t block = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(n, 1));
  const int64_t blocks = (rows + block - 1) / block;
  std::vector<Acc> partial(static_cast<size_t>(batch.size() * blocks * n));
  for_row_blocks(batch.size(), rows, n, [&](int64_t row, int64_t count, int64_t i) {
    std::vector<Acc> values(static_cast<size_t>(n));
    Acc* const sums = partial.data() + (i * blocks + row / block) * n;
    for (int64_t r = row; r < row + count; ++r) {
      copy_matrix(batch.c.shifted(batch.c_offsets[i]).block(r, 1, 0, n),
                  dense_matrix(dtype_of<Acc>(), values.data(), 1, n));
      for (int64_t j = 0; j < n; ++j) sums[j] += values[j];
    }
  });
  Acc* const total = p.bias_gradient.data<Acc>();
  std::fill_n(total, n, Acc(0));
  for (size_t i = 0; i < partial.size(); ++i) total[i % static_cast<size_t>(n)] += partial[i];
}

}  // namespace

void gemm_by_products(const GemmProblem& problem,
                      const std::function<void(const GemmProduct&)>& multiply) {
  constexpr int64_t kSmallProduct = 1 << 20;
  if (finish_if_empty(problem)) return;
  const GemmProblem p = with_residual_in_c(problem);
  const GemmBatch batch = gemm_batch(p);
  if (p.k() == 0) {
    gemm_without_products(p, batch);
    return gemm_epilogue(p, batch);
  }
  const Tensor bias = gemm_bias(p);
  const bool to_aux = p.epilogue == Epilogue::kGelu;
  const bool is_small = batch.c.rows * batch.c.cols * batch.a.cols < kSmallProduct;
  parallel_for(batch.size(), is_small ? 1 : batch.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      multiply({.a = batch.a.shifted(batch.a_offsets[i]),
                .b = batch.b.shifted(batch.b_offsets[i]),
                .c = to_aux ? batch.aux.shifted(batch.aux_offsets[i])
                            : batch.c.shifted(batch.c_offsets[i]),
                .scale = static_cast<float>(p.scale),
                .bias = bias.defined() ? bias.data<float>() : nullptr,
                .accumulate = p.accumulate});
    }
  });
  gemm_epilogue(p, batch);
}

GemmProblem with_residual_in_c(const GemmProblem& p) {
  if (!p.residual.defined()) return p;
  WEFT_ASSERT(p.epilogue == Epilogue::kNone && !p.accumulate);
  WEFT_ASSERT(p.residual.shape() == p.c.shape() && p.residual.dtype() == p.c.dtype());
  const std::vector<int64_t> from = internal::matrix_offsets(p.residual);
  const std::vector<int64_t> to = internal::matrix_offsets(p.c);
  for (size_t i = 0; i < to.size(); ++i) {
    copy_matrix_in_parallel(matrix_of(p.residual).shifted(from[i]), matrix_of(p.c).shifted(to[i]));
  }
  GemmProblem result = p;
  result.accumulate = true;
  result.residual = {};
  return result;
}

void gemm_epilogue(const GemmProblem& p, const GemmBatch& batch) {
  if (p.epilogue == Epilogue::kNone) return;
  for_row_blocks(
      batch.size(), batch.c.rows, batch.c.cols, [&](int64_t row, int64_t rows, int64_t i) {
        const Matrix aux =
            batch.aux.shifted(batch.aux_offsets[i]).block(row, rows, 0, batch.aux.cols);
        const Matrix c = batch.c.shifted(batch.c_offsets[i]).block(row, rows, 0, batch.c.cols);
        p.epilogue == Epilogue::kGelu ? gelu_matrix(aux, c) : dgelu_matrix(aux, c);
      });
  if (!p.bias_gradient.defined()) return;
  p.dtype() == DType::f64 ? sum_columns<double>(p, batch) : sum_columns<float>(p, batch);
}

void copy_matrix_in_parallel(const Matrix& from, const Matrix& to) {
  if (from.row_stride == 1 && from.col_stride != 1) {
    return for_row_blocks(1, from.cols, from.rows, [&](int64_t col, int64_t cols, int64_t) {
      copy_matrix(from.block(0, from.rows, col, cols), to.block(0, to.rows, col, cols));
    });
  }
  for_row_blocks(1, from.rows, from.cols, [&](int64_t row, int64_t rows, int64_t) {
    copy_matrix(from.block(row, rows, 0, from.cols), to.block(row, rows, 0, to.cols));
  });
}

void gemm_without_products(const GemmProblem& p, const GemmBatch& batch) {
  if (p.accumulate && !p.bias.defined()) return;
  const Tensor bias = gemm_bias(p);
  const bool wide = p.dtype() == DType::f64;
  const Tensor zeros = Tensor::zeros({p.n()}, wide ? DType::f64 : DType::f32);
  const Matrix row = {zeros.dtype(), zeros.raw(), 1, p.n(), 0, 1};
  for (int64_t i = 0; i < batch.size(); ++i) {
    const Matrix target = p.epilogue == Epilogue::kGelu ? batch.aux.shifted(batch.aux_offsets[i])
                                                        : batch.c.shifted(batch.c_offsets[i]);
    for (int64_t m = 0; m < target.rows; ++m) {
      add_bias_matrix(row, bias.defined() ? bias.raw() : nullptr, p.accumulate,
                      target.block(m, 1, 0, target.cols));
    }
  }
}

Tensor gemm_bias(const GemmProblem& p) {
  if (!p.bias.defined()) return {};
  WEFT_ASSERT(p.bias.dim() == 1 && p.bias.size(0) == p.n());
  const DType wanted = p.dtype() == DType::f64 ? DType::f64 : DType::f32;
  if (p.bias.dtype() == wanted && p.bias.is_contiguous()) return p.bias;
  if (wanted == DType::f64) return Tensor::from(p.bias.to_vector(), {p.n()});
  const Tensor bias = Tensor::empty({p.n()}, wanted);
  copy_matrix({p.bias.dtype(), p.bias.raw(), 1, p.n(), 0, p.bias.stride(0)},
              dense_matrix(wanted, bias.raw(), 1, p.n()));
  return bias;
}

}  // namespace weft::kernels
