#include "kernels/gemm/gemm_batch.h"

#include <optional>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/gemm/gemm_small.h"

namespace weft::kernels {
namespace {

int64_t rows_per_task(int64_t cols) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(cols, 1));
}

/// Calls f(first row, rows, matrix) in parallel over blocks of rows of all matrices.
template <class F>
void for_row_blocks(int64_t matrices, int64_t rows, int64_t cols, F&& f) {
  const int64_t block = rows_per_task(cols), blocks = (rows + block - 1) / block;
  parallel_for(matrices * blocks, 1, [&](int64_t task, int64_t) {
    const int64_t row = task % blocks * block;
    f(row, std::min(block, rows - row), task / blocks);
  });
}

/// Sums over blocks of rows, whose size the shape decides, then those in order.
template <class Acc>
void sum_columns(const GemmProblem& p, const GemmBatch& batch) {
  const int64_t n = batch.c.first.cols, rows = batch.c.first.rows;
  const int64_t block = rows_per_task(n), blocks = (rows + block - 1) / block;
  std::vector<Acc> partial(static_cast<size_t>(batch.size() * blocks * n));
  for_row_blocks(batch.size(), rows, n, [&](int64_t row, int64_t count, int64_t i) {
    std::vector<Acc> values(static_cast<size_t>(n));
    Acc* const sums = partial.data() + (i * blocks + row / block) * n;
    for (int64_t r = row; r < row + count; ++r) {
      copy_matrix(batch.c.at(i).row_block(r, 1),
                  dense_matrix(dtype_of<Acc>(), values.data(), 1, n));
      for (int64_t j = 0; j < n; ++j) sums[j] += values[j];
    }
  });
  Acc* const total = p.bias_gradient.data<Acc>();
  std::fill_n(total, n, Acc(0));
  for (size_t i = 0; i < partial.size(); ++i) total[i % static_cast<size_t>(n)] += partial[i];
}

/// C = gelu(aux) or C *= gelu'(aux), for all matrices; then the bias gradient.
void finish(const GemmProblem& p, const GemmBatch& batch) {
  if (p.epilogue == Epilogue::kNone) return;
  const auto activate = [&](int64_t row, int64_t rows, int64_t i) {
    gelu_matrix(batch.aux.at(i).row_block(row, rows), batch.c.at(i).row_block(row, rows),
                !batch.has_gelu);
  };
  for_row_blocks(batch.size(), batch.c.first.rows, batch.c.first.cols, activate);
  if (!p.bias_gradient.defined()) return;
  p.dtype() == DType::f64 ? sum_columns<double>(p, batch) : sum_columns<float>(p, batch);
}

GemmProblem with_residual_in_c(const GemmProblem& p) {
  if (!p.residual.defined()) return p;
  WEFT_ASSERT(p.epilogue == Epilogue::kNone && !p.accumulate);
  WEFT_ASSERT(p.residual.shape() == p.c.shape() && p.residual.dtype() == p.c.dtype());
  const MatrixBatch from(p.residual), to(p.c);
  for (size_t i = 0; i < to.offsets.size(); ++i) copy_matrix_in_parallel(from.at(i), to.at(i));
  GemmProblem result = p;
  result.accumulate = true;
  result.residual = {};
  return result;
}

/// The bias as contiguous f32 (f64 for f64); undefined without one.
Tensor bias_of(const GemmProblem& p) {
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

/// K = 0: bias or zeros, or nothing to add.
void store_bias(const GemmProblem& p, const GemmBatch& batch, const Tensor& bias) {
  if (p.accumulate && !bias.defined()) return;
  const Tensor zeros = Tensor::zeros({p.n()}, p.dtype() == DType::f64 ? DType::f64 : DType::f32);
  for (int64_t i = 0; i < batch.size(); ++i) {
    const Matrix to = batch.sums().at(i);
    add_bias_matrix({zeros.dtype(), zeros.raw(), to.rows, to.cols, 0, 1},
                    bias.defined() ? bias.raw() : nullptr, p.accumulate, to);
  }
}

/// n matrices from i on lie one after another.
bool are_adjacent(const MatrixBatch& m, int64_t i, int64_t n) {
  for (int64_t j = i + 1; j < i + n; ++j) {
    if (m.offsets[j] - m.offsets[j - 1] != m.first.rows * m.first.cols) return false;
  }
  return true;
}

}  // namespace

GemmBatch gemm_batch_of(const GemmProblem& p) {
  WEFT_ASSERT(
      p.a.dim() == p.c.dim() && p.b.dim() == p.c.dim() &&
      (p.a.dtype() == p.b.dtype() || (itemsize(p.a.dtype()) == 1 && itemsize(p.b.dtype()) == 1)));
  WEFT_ASSERT(p.a.size(-2) == p.m() && p.b.size(-1) == p.n() && p.b.size(-2) == p.k());
  WEFT_ASSERT((p.epilogue != Epilogue::kNone) == p.aux.defined());
  WEFT_ASSERT(!p.accumulate || p.epilogue == Epilogue::kNone);
  WEFT_ASSERT(!p.bias_gradient.defined() || p.epilogue == Epilogue::kDgelu);
  WEFT_ASSERT(!p.aux.defined() || (p.aux.shape() == p.c.shape() && p.aux.dtype() == p.c.dtype()));
  Tensor a = p.a, b = p.b, c = p.c, aux = p.aux;
  if (p.c.dim() > 2 && p.k() > 0 && batch_stride(p.b) == 0) {
    const auto fold_rows = [](const Tensor& t) {
      return view::try_reshape(t, {t.numel() / t.size(-1), t.size(-1)});
    };
    const auto rows_a = fold_rows(a), rows_c = fold_rows(c);
    const auto rows_aux = aux.defined() ? fold_rows(aux) : std::optional(aux);
    if (rows_a && rows_c && rows_aux) {
      a = *rows_a;
      c = *rows_c;
      aux = *rows_aux;
      while (b.dim() > 2) b = view::select(b, 0, 0);
    }
  }
  return {a, b, c, aux, p.epilogue == Epilogue::kGelu};
}

int64_t gemm_cpu_scratch(const GemmProblem& p) {
  if (p.c.numel() == 0 || p.k() == 0 || gemm_fits_small(p)) return 0;
  switch (gemm_arithmetic(p.dtype(), p.numerics)) {
    case GemmArithmetic::kIeee:
      return p.dtype() == DType::f64 ? 0 : gemm_onednn_scratch(p);
    case GemmArithmetic::kTf32:
      return gemm_tf32_scratch(p);
    case GemmArithmetic::kFp8: {
      const int64_t wide = (p.c.numel() / p.n() + p.n()) * p.k();
      return p.b.dim() > 2 ? 0 : wide * static_cast<int64_t>(sizeof(double));
    }
    default:
      return 0;
  }
}

MatrixBatch::MatrixBatch(const Tensor& t) {
  if (!t.defined()) return;
  first = {t.dtype(), t.raw(), t.size(-2), t.size(-1), t.stride(-2), t.stride(-1)};
  const auto without_matrix = [&](const Shape& list) {
    return Shape(std::span(list.begin(), static_cast<size_t>(t.dim() - 2)));
  };
  for_each_offset(without_matrix(t.shape()), without_matrix(t.strides()),
                  [&](int64_t i) { offsets.push_back(i); });
}

void gemm_by_batch(
    const GemmProblem& problem,
    const std::function<void(const GemmProblem&, const GemmBatch&, const Tensor& bias)>& multiply) {
  if (finish_if_empty(problem)) return;
  const GemmProblem p = with_residual_in_c(problem);
  const GemmBatch batch = gemm_batch_of(p);
  const Tensor bias = bias_of(p);
  p.k() == 0 ? store_bias(p, batch, bias) : multiply(p, batch, bias);
  finish(p, batch);
}

void gemm_by_products(const GemmProblem& problem,
                      const std::function<void(const GemmProduct&)>& multiply) {
  gemm_by_batch(problem, [&](const GemmProblem& p, const GemmBatch& batch, const Tensor& bias) {
    constexpr int64_t kSmallProduct = 1 << 20;
    const bool is_small = batch.c.first.rows * batch.c.first.cols * p.k() < kSmallProduct;
    parallel_for(batch.size(), is_small ? 1 : batch.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        multiply({.a = batch.a.at(i),
                  .b = batch.b.at(i),
                  .c = batch.sums().at(i),
                  .scale = static_cast<float>(p.scale),
                  .bias = bias.defined() ? bias.data<float>() : nullptr,
                  .accumulate = p.accumulate});
      }
    });
  });
}

void copy_matrix_in_parallel(const Matrix& from, const Matrix& to) {
  if (from.row_stride == 1 && from.col_stride != 1) {
    return for_row_blocks(1, from.cols, from.rows, [&](int64_t col, int64_t cols, int64_t) {
      copy_matrix(from.block(0, from.rows, col, cols), to.block(0, to.rows, col, cols));
    });
  }
  for_row_blocks(1, from.rows, from.cols, [&](int64_t row, int64_t rows, int64_t) {
    copy_matrix(from.row_block(row, rows), to.row_block(row, rows));
  });
}

bool is_read_transposed(const Matrix& m) {
  if (m.is_dense()) return false;
  return m.transposed().is_dense() || (m.row_stride == 1 && m.col_stride != 1);
}

bool is_dense_in(const Matrix& m, DType dtype) {
  return m.dtype == dtype && (is_read_transposed(m) ? m.transposed() : m).is_dense();
}

DenseMatrices dense_matrices(const MatrixBatch& from, int64_t i, int64_t n, DType dtype) {
  const bool transposed = is_read_transposed(from.first);
  const auto at = [&](int64_t j) {
    return transposed ? from.at(i + j).transposed() : from.at(i + j);
  };
  if (is_dense_in(from.first, dtype) && are_adjacent(from, i, n)) {
    return {at(0), transposed};
  }
  const int64_t elements = from.first.rows * from.first.cols;
  const Tensor storage = Tensor::empty({n * elements}, dtype);
  const Matrix first = dense_matrix(dtype, storage.raw(), at(0).rows, at(0).cols);
  for (int64_t j = 0; j < n; ++j) copy_matrix_in_parallel(at(j), first.shifted(j * elements));
  return {first, transposed, storage};
}

DenseResults::DenseResults(const MatrixBatch& to, int64_t i, int64_t n, DType dtype, bool reads_old)
    : to_(to), i_(i), n_(n), first_(to.at(i)) {
  if (first_.dtype == dtype && first_.is_dense() && are_adjacent(to, i, n)) return;
  scratch_ = Tensor::empty({n, first_.rows, first_.cols}, dtype);
  first_ = dense_matrix(dtype, scratch_.raw(), first_.rows, first_.cols);
  for (int64_t j = 0; reads_old && j < n; ++j) copy_matrix_in_parallel(to.at(i + j), at(j));
}

void DenseResults::store() const {
  for (int64_t j = 0; scratch_.defined() && j < n_; ++j) {
    copy_matrix_in_parallel(at(j), to_.at(i_ + j));
  }
}

}  // namespace weft::kernels
