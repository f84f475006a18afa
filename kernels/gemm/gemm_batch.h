// A gemm problem as its CPU variants see it: a list of matrix products on plain memory.
#pragma once

#include <functional>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/matrix.h"

namespace weft::kernels {

/// The matrices in the last two dimensions of a tensor: the first, and where the others lie.
struct MatrixBatch {
  Matrix first;
  std::vector<int64_t> offsets;

  MatrixBatch() = default;
  MatrixBatch(const Matrix& first, std::vector<int64_t> offsets)
      : first(first), offsets(std::move(offsets)) {}
  /// None of an undefined tensor.
  MatrixBatch(const Tensor& t);
  Matrix at(int64_t i) const { return first.shifted(offsets[i]); }
};

struct GemmBatch {
  MatrixBatch a, b, c, aux;
  bool has_gelu = false;

  int64_t size() const { return static_cast<int64_t>(c.offsets.size()); }
  /// Where the products go: a GELU wants its argument in aux.
  const MatrixBatch& sums() const { return has_gelu ? aux : c; }
};

/// The problem as a batch; when every batch multiplies the same b, the batch dimensions become rows
/// of one product, if the strides allow.
GemmBatch gemm_batch_of(const GemmProblem& problem);

/// Bytes that the CPU's variant of a problem takes for itself in the calling thread: operands and
/// results that pass through a copy, and oneDNN's. Not those of a batch of products with different
/// B, of which a few are done at a time, nor of f64.
int64_t gemm_cpu_scratch(const GemmProblem& problem);
/// Of the variants that these are of.
int64_t gemm_onednn_scratch(const GemmProblem& problem);
int64_t gemm_tf32_scratch(const GemmProblem& problem);

/// A whole problem by a function for its products, sums = A B + bias (or sums += that), of which
/// there is at least one, of K > 0. bias: contiguous, f32 (f64 for f64), or undefined. A residual
/// is copied into c to be accumulated onto: it is rounded once all the same.
void gemm_by_batch(
    const GemmProblem& problem,
    const std::function<void(const GemmProblem&, const GemmBatch&, const Tensor& bias)>& multiply);

/// C = scale A B + bias, or C += that. C stands for aux where a GELU follows.
struct GemmProduct {
  Matrix a, b, c;
  float scale;
  const float* bias;  // or null
  bool accumulate;
};

/// The same with f32 bias by a function for one product: small products are dealt out to threads,
/// large ones may use all.
void gemm_by_products(const GemmProblem& problem,
                      const std::function<void(const GemmProduct&)>& multiply);

void copy_matrix_in_parallel(const Matrix& from, const Matrix& to);

/// Matrices as libraries take them, one after another: row-major or transposed, without gaps.
struct DenseMatrices {
  Matrix first;  // row-major: itself the transpose where that is what lies in memory
  bool transposed = false;
  Tensor storage = {};  // keeps copies alive
};
/// Whether the matrix, or its copy, is read as a transposed one.
bool is_read_transposed(const Matrix& m);
/// Whether a library takes the matrix where it lies.
bool is_dense_in(const Matrix& m, DType dtype);
/// n of them from i on: those in memory where they lie so, else copies.
DenseMatrices dense_matrices(const MatrixBatch& from, int64_t i, int64_t n, DType dtype);

/// Where a library writes n matrices from i on, row-major and one after another: themselves where
/// they lie so, else memory that store() brings to them, and that holds their old values if asked.
class DenseResults {
 public:
  DenseResults(const MatrixBatch& to, int64_t i, int64_t n, DType dtype, bool reads_old = false);
  Matrix first() const { return first_; }
  void store() const;

 private:
  Matrix at(int64_t j) const { return first_.shifted(j * first_.rows * first_.cols); }

  const MatrixBatch& to_;
  int64_t i_, n_;
  Tensor scratch_;  // undefined where they are written in place
  Matrix first_;
};

/// x itself for Tf32::kOff and for other dtypes than f32. Else a tensor of x's shape whose elements
/// have 10 mantissa bits: truncated toward zero, or rounded to nearest, ties away. Dimensions of
/// stride 0 stay so, and a matrix whose columns lie side by side keeps that layout. NaNs stay NaNs.
Tensor tf32_operand(const Tensor& x, Tf32 rounding);
GemmProblem with_tf32_operands(GemmProblem p, Tf32 rounding);

}  // namespace weft::kernels
