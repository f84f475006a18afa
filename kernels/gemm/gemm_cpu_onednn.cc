// oneDNN's matmul: f32, and bf16 where the CPU has it; f16, and bf16 elsewhere, are widened to f32.
//
// Large products use all threads; a batch of small ones is dealt out in groups of fixed size, each
// multiplied in one thread. Operands that are not dense are copied first, which costs little beside
// the product. The GELU is a pass of our own: oneDNN's has no relative accuracy in the tail and
// cannot also keep its argument.
#include <algorithm>

#include "core/parallel.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/onednn_packed.h"

namespace weft::kernels {
namespace {

// oneDNN may split the K of a transposed A among threads from 2048 on; chunks of half that, added
// in order, cost nothing measurable.
constexpr int64_t kMaxSplitK = 1024;
// Rows from which bringing B into the blocked layout pays: it gains 1 to 7% of the product. A B
// that lies transposed takes oneDNN longer to bring there.
constexpr int64_t kRowsForReorder = 512, kRowsForTransposedReorder = 1536;
// Multiply-adds below which one thread is quicker than waking the others.
constexpr int64_t kSerialProduct = int64_t{1} << 19;
// In a batch, products below the first size are multiplied by one thread each, in calls of about
// the second size.
constexpr int64_t kSmallProduct = int64_t{1} << 25;
constexpr int64_t kGroupProducts = int64_t{1} << 21;

DenseMatrices operand(const Matrix& m, DType dtype) {
  return dense_matrices({m, {0}}, 0, 1, dtype);
}

struct Product {
  DType input;        // what is multiplied: f32 or bf16
  const float* bias;  // or null
  bool accumulate;
  const Tensor& b;  // where B lies
};

/// The dtype that oneDNN writes for a result of dtype c.
DType output_dtype(DType input, DType c) { return c == input ? c : DType::f32; }

int64_t rows_of_block(int64_t rows) { return std::clamp<int64_t>((rows + 15) / 16, 32, 256); }
MatmulKey row_block_key(MatmulKey key, int64_t rows) {
  key.m = rows;
  key.threads = 1;
  key.reorders_b = false;
  return key;
}

/// C = A B in blocks of rows whose size the shape decides, one thread each: for oneDNN's drivers
/// that split K among threads.
void multiply_row_blocks(const MatmulKey& key, const Matrix& a, const void* b, const Matrix& c,
                         const float* bias) {
  const int64_t block = rows_of_block(c.rows);
  parallel_for(c.rows, block, [&](int64_t begin, int64_t end) {
    MatmulKey part = row_block_key(key, end - begin);
    const DenseMatrices rows = operand(a.row_block(begin, part.m), key.input);
    part.a_transposed = rows.transposed;
    onednn_matmul(part, rows.first.data, b, c.at(begin, 0), bias);
  });
}

/// How one product is done with all threads.
struct LargeProduct {
  Matrix a, b, c;
  DType input;
  bool has_bias, accumulates;

  /// Elements of K that one call takes.
  int64_t part() const {
    const bool splits_k = a.cols >= 2 * kMaxSplitK && (is_read_transposed(a) || a.rows == 1);
    return splits_k ? kMaxSplitK : a.cols;
  }
  DType output() const { return part() < a.cols ? DType::f32 : output_dtype(input, c.dtype); }
  /// What stands at [first, first + k) of K.
  Matrix part_of_a(int64_t first, int64_t k) const { return a.block(0, a.rows, first, k); }
  Matrix part_of_b(int64_t first, int64_t k) const { return b.row_block(first, k); }
  MatmulKey key(int64_t first, int64_t k) const {
    MatmulKey key{.input = input,
                  .output = output(),
                  .m = c.rows,
                  .n = c.cols,
                  .k = k,
                  .a_transposed = is_read_transposed(part_of_a(first, k)),
                  .b_transposed = is_read_transposed(part_of_b(first, k)),
                  .bias = has_bias && first == 0,
                  .sum = accumulates || first > 0};
    key.is_shared = c.rows * c.cols * k >= kSerialProduct;
    if (key.is_shared) key.threads = matmul_threads();
    const int64_t least = key.b_transposed ? kRowsForTransposedReorder : kRowsForReorder;
    key.reorders_b = !key.a_transposed && key.m >= least && key.n >= 32 && key.k >= 32;
    return key;
  }
};

/// One product with all threads.
void multiply_large(const Product& p, const Matrix& a, const Matrix& b, const Matrix& c) {
  const LargeProduct product{a, b, c, p.input, p.bias != nullptr, p.accumulate};
  const MatrixBatch to{c, {0}};
  const DenseResults target(to, 0, 1, product.output(), p.accumulate);
  const int64_t part = product.part();
  for (int64_t first = 0; first < a.cols; first += part) {
    const int64_t k = std::min(part, a.cols - first);
    const Matrix part_a = product.part_of_a(first, k);
    const DenseMatrices dense_a = operand(part_a, p.input);
    const DenseMatrices dense_b = operand(product.part_of_b(first, k), p.input);
    const MatmulKey key = product.key(first, k);
    if (onednn_keeps_bits(key)) {
      const bool is_in_place = !dense_b.storage.defined() && !key.a_transposed;
      onednn_packed_matmul(key, dense_a.first.data, dense_b.first.data, target.first().data, p.bias,
                           is_in_place ? p.b : Tensor());
    } else {
      multiply_row_blocks(key, part_a, dense_b.first.data, target.first(), p.bias);
    }
  }
  target.store();
}

/// Many small products, in groups of a size that the shape decides, one thread each.
void multiply_batch(const Product& p, const MatrixBatch& a, const MatrixBatch& b,
                    const MatrixBatch& c) {
  const int64_t m = c.first.rows, n = c.first.cols, k = a.first.cols;
  const auto batch = static_cast<int64_t>(c.offsets.size());
  const int64_t group = std::clamp<int64_t>(kGroupProducts / (m * n * k), 1, batch);
  const DType output = output_dtype(p.input, c.first.dtype);
  const auto repeats = [](const MatrixBatch& x) {
    return std::ranges::all_of(x.offsets, [&](auto at) { return at == x.offsets.front(); });
  };
  const bool repeats_a = repeats(a), repeats_b = !repeats_a && repeats(b);
  parallel_for(batch, group, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const DenseMatrices dense_a = dense_matrices(a, begin, repeats_a ? 1 : count, p.input);
    const DenseMatrices dense_b = dense_matrices(b, begin, repeats_b ? 1 : count, p.input);
    const DenseResults target(c, begin, count, output, p.accumulate);
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
    onednn_matmul(key, dense_a.first.data, dense_b.first.data, target.first().data, p.bias);
    target.store();
  });
}

/// Bytes of a copy of the matrix, where it takes one.
int64_t copy_bytes(const Matrix& m, DType dtype) {
  return is_dense_in(m, dtype) ? 0 : m.rows * m.cols * static_cast<int64_t>(itemsize(dtype));
}

}  // namespace

int64_t gemm_onednn_scratch(const GemmProblem& p) {
  const GemmBatch batch = gemm_batch_of(p);
  if (batch.size() > 1) return 0;
  const LargeProduct product{batch.a.first,      batch.b.first,
                             batch.sums().first, onednn_input(p.dtype()),
                             p.bias.defined(),   p.accumulate || p.residual.defined()};
  const int64_t k = product.part();
  const MatmulKey key = product.key(0, k);
  const Matrix a = product.part_of_a(0, k), &c = product.c;
  // Results are row-major.
  const bool is_in_place = c.dtype == key.output && c.is_dense();
  int64_t bytes = copy_bytes(a, key.input) + copy_bytes(product.part_of_b(0, k), key.input);
  if (!is_in_place) bytes += c.rows * c.cols * static_cast<int64_t>(itemsize(key.output));
  if (onednn_keeps_bits(key)) return bytes + onednn_matmul_scratch(key);
  const int64_t rows = std::min(rows_of_block(c.rows), c.rows);
  return bytes + copy_bytes(a.row_block(0, rows), key.input) +
         onednn_matmul_scratch(row_block_key(key, rows));
}

void gemm_cpu_onednn(const GemmProblem& problem) {
  gemm_by_batch(problem, [](const GemmProblem& p, const GemmBatch& batch, const Tensor& bias) {
    const Product product{onednn_input(p.dtype()), bias.defined() ? bias.data<float>() : nullptr,
                          p.accumulate, p.b};
    const MatrixBatch& c = batch.sums();
    if (batch.size() > 1 && c.first.rows * c.first.cols * p.k() < kSmallProduct) {
      return multiply_batch(product, batch.a, batch.b, c);
    }
    for (int64_t i = 0; i < batch.size(); ++i) {
      multiply_large(product, batch.a.at(i), batch.b.at(i), c.at(i));
    }
  });
}

}  // namespace weft::kernels
