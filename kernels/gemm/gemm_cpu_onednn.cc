// oneDNN's matmul: f32, and bf16 where the CPU has it; f16, and bf16 elsewhere, are widened to f32.
//
// Large products use all threads; a batch of small ones is dealt out in groups of fixed size, each
// multiplied in one thread. Operands that are not dense are copied first, which costs little beside
// the product. The GELU is a pass of our own: oneDNN's has no relative accuracy in the tail and
// cannot also keep its argument.
#include <algorithm>

#include "core/parallel.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {
namespace {

// oneDNN may split the K of a transposed A among threads from 2048 on; chunks of half that, added
// in order, cost nothing measurable.
constexpr int64_t kMaxSplitK = 1024;
// Rows from which bringing B into the blocked layout pays: it gains 1 to 7% of the product.
constexpr int64_t kRowsForReorder = 512;
// Multiply-adds below which one thread is quicker than waking the others.
constexpr int64_t kSerialProduct = int64_t{1} << 19;
// In a batch, products below the first size are multiplied by one thread each, in calls of about
// the second size.
constexpr int64_t kSmallProduct = int64_t{1} << 25;
constexpr int64_t kGroupProducts = int64_t{1} << 21;

/// A dense operand: row-major, or transposed.
struct Operand {
  const void* data = nullptr;
  bool transposed = false;
  Tensor storage = {};  // keeps a copy alive
};

bool is_read_transposed(const Matrix& m) {
  if (m.is_dense()) return false;
  return m.transposed().is_dense() || (m.row_stride == 1 && m.col_stride != 1);
}

bool is_usable(const Matrix& m, DType dtype) {
  return m.dtype == dtype && (m.is_dense() || m.transposed().is_dense());
}

/// The matrix itself where it is dense and of the dtype, else a copy.
Operand operand(const Matrix& m, DType dtype) {
  const bool transposed = is_read_transposed(m);
  if (is_usable(m, dtype)) return {m.data, transposed};
  const Tensor storage = Tensor::empty({m.rows * m.cols}, dtype);
  const Matrix source = transposed ? m.transposed() : m;
  copy_matrix_in_parallel(source, dense_matrix(dtype, storage.raw(), source.rows, source.cols));
  return {storage.raw(), transposed, storage};
}

struct Product {
  DType input;        // what is multiplied: f32 or bf16
  const float* bias;  // or null
  bool accumulate;
};

/// The dtype that oneDNN writes for a result of dtype c.
DType output_dtype(DType input, DType c) { return c == input ? c : DType::f32; }

/// C = A B in blocks of rows whose size the shape decides, one thread each: for oneDNN's drivers
/// that split K among threads.
void multiply_row_blocks(MatmulKey key, const Matrix& a, const Operand& b, const Matrix& c,
                         const float* bias) {
  const int64_t block = std::clamp<int64_t>((c.rows + 15) / 16, 32, 256);
  key.threads = 1;
  key.reorders_b = false;
  parallel_for(c.rows, block, [&](int64_t begin, int64_t end) {
    MatmulKey part = key;
    part.m = end - begin;
    const Operand rows = operand(a.block(begin, part.m, 0, a.cols), key.input);
    part.a_transposed = rows.transposed;
    onednn_matmul(part, rows.data, b.data, c.at(begin, 0), bias);
  });
}

/// One product with all threads.
void multiply_large(const Product& p, const Matrix& a, const Matrix& b, const Matrix& c) {
  const bool splits_k = a.cols >= 2 * kMaxSplitK && (is_read_transposed(a) || a.rows == 1);
  const DType output = splits_k ? DType::f32 : output_dtype(p.input, c.dtype);
  const bool is_written_in_place = c.is_dense() && c.dtype == output;
  Tensor scratch;
  Matrix target = c;
  if (!is_written_in_place) {
    scratch = Tensor::empty({c.rows, c.cols}, output);
    target = dense_matrix(output, scratch.raw(), c.rows, c.cols);
    if (p.accumulate) copy_matrix_in_parallel(c, target);
  }
  const int64_t chunk = splits_k ? kMaxSplitK : a.cols;
  for (int64_t first = 0; first < a.cols; first += chunk) {
    const int64_t k = std::min(chunk, a.cols - first);
    const Matrix part_a = a.block(0, a.rows, first, k);
    const Operand dense_a = operand(part_a, p.input);
    const Operand dense_b = operand(b.block(first, k, 0, b.cols), p.input);
    MatmulKey key{.input = p.input,
                  .output = output,
                  .m = c.rows,
                  .n = c.cols,
                  .k = k,
                  .a_transposed = dense_a.transposed,
                  .b_transposed = dense_b.transposed,
                  .bias = p.bias && first == 0,
                  .sum = p.accumulate || first > 0};
    key.is_shared = c.rows * c.cols * k >= kSerialProduct;
    if (key.is_shared) key.threads = matmul_threads();
    key.reorders_b = !key.a_transposed && key.m >= kRowsForReorder && key.n >= 32 && key.k >= 32;
    if (onednn_keeps_bits(key)) {
      onednn_matmul(key, dense_a.data, dense_b.data, target.data, p.bias);
    } else {
      multiply_row_blocks(key, part_a, dense_b, target, p.bias);
    }
  }
  if (!is_written_in_place) copy_matrix_in_parallel(target, c);
}

/// The matrices of a batch: the first, and where the others lie.
struct Series {
  Matrix first;
  const std::vector<int64_t>& offsets;

  Matrix at(int64_t i) const { return first.shifted(offsets[i]); }
  bool is_repeated() const { return offsets.front() == offsets.back(); }
  /// n of them, from i on, lie one after another.
  bool is_dense(int64_t i, int64_t n) const {
    for (int64_t j = i + 1; j < i + n; ++j) {
      if (offsets[j] - offsets[j - 1] != first.rows * first.cols) return false;
    }
    return true;
  }
};

/// n operands from i on, dense and one after another.
Operand operands(const Series& s, int64_t i, int64_t n, DType dtype) {
  const bool transposed = is_read_transposed(s.first);
  if (is_usable(s.first, dtype) && s.is_dense(i, n)) return {s.at(i).data, transposed};
  const int64_t elements = s.first.rows * s.first.cols;
  const Tensor storage = Tensor::empty({n * elements}, dtype);
  for (int64_t j = 0; j < n; ++j) {
    const Matrix source = transposed ? s.at(i + j).transposed() : s.at(i + j);
    copy_matrix(source,
                dense_matrix(dtype, storage.raw(), source.rows, source.cols).shifted(j * elements));
  }
  return {storage.raw(), transposed, storage};
}

/// Many small products, in groups of a size that the shape decides, one thread each.
void multiply_batch(const Product& p, const Series& a, const Series& b, const Series& c) {
  const int64_t m = c.first.rows, n = c.first.cols, k = a.first.cols;
  const auto batch = static_cast<int64_t>(c.offsets.size());
  const int64_t group = std::clamp<int64_t>(kGroupProducts / (m * n * k), 1, batch);
  const DType output = output_dtype(p.input, c.first.dtype);
  // Strides are not negative: where the first and the last coincide, all do.
  const bool repeats_a = a.is_repeated(), repeats_b = !repeats_a && b.is_repeated();
  parallel_for(batch, group, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const Operand dense_a = operands(a, begin, repeats_a ? 1 : count, p.input);
    const Operand dense_b = operands(b, begin, repeats_b ? 1 : count, p.input);
    const bool is_written_in_place =
        c.first.dtype == output && c.first.is_dense() && c.is_dense(begin, count);
    Tensor scratch;
    const auto scratch_matrix = [&](int64_t i) {
      return dense_matrix(output, scratch.raw(), m, n).shifted(i * m * n);
    };
    if (!is_written_in_place) {
      scratch = Tensor::empty({count, m, n}, output);
      for (int64_t i = 0; p.accumulate && i < count; ++i) {
        copy_matrix(c.at(begin + i), scratch_matrix(i));
      }
    }
    const MatmulKey key{.input = p.input,
                        .output = output,
                        .batch = count,
                        .m = m,
                        .n = n,
                        .k = k,
                        .a_transposed = dense_a.transposed,
                        .b_transposed = dense_b.transposed,
                        .a_repeated = repeats_a,
                        .b_repeated = repeats_b,
                        .bias = p.bias != nullptr,
                        .sum = p.accumulate};
    onednn_matmul(key, dense_a.data, dense_b.data,
                  is_written_in_place ? c.at(begin).data : scratch.raw(), p.bias);
    for (int64_t i = 0; !is_written_in_place && i < count; ++i) {
      copy_matrix(scratch_matrix(i), c.at(begin + i));
    }
  });
}

}  // namespace

void gemm_cpu_onednn(const GemmProblem& asked) {
  if (finish_if_empty(asked)) return;
  const GemmProblem problem = with_residual_in_c(asked);
  const GemmBatch batch = gemm_batch(problem);
  if (problem.k() == 0) {
    gemm_without_products(problem, batch);
    return gemm_epilogue(problem, batch);
  }
  const Tensor bias = gemm_bias(problem);
  const Product product{
      problem.dtype() == DType::bf16 && onednn_has_bf16() ? DType::bf16 : DType::f32,
      bias.defined() ? bias.data<float>() : nullptr, problem.accumulate};
  // The GELU wants its argument in aux.
  const bool to_aux = problem.epilogue == Epilogue::kGelu;
  const Series a{batch.a, batch.a_offsets}, b{batch.b, batch.b_offsets};
  const Series c{to_aux ? batch.aux : batch.c, to_aux ? batch.aux_offsets : batch.c_offsets};
  if (batch.size() == 1 || c.first.rows * c.first.cols * batch.a.cols >= kSmallProduct) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      multiply_large(product, a.at(i), b.at(i), c.at(i));
    }
  } else {
    multiply_batch(product, a, b, c);
  }
  gemm_epilogue(problem, batch);
}

}  // namespace weft::kernels
