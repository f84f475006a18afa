// Matrices in memory, for the inside of CPU kernels: copied between layouts and dtypes, and the
// GELU passes over them. Each function works in the calling thread.
#pragma once

#include "core/dtype.h"

namespace weft::kernels {

/// Element (i, j) lies i * row_stride + j * col_stride elements after data.
struct Matrix {
  DType dtype = DType::f32;
  void* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 0;

  void* at(int64_t i, int64_t j) const { return shifted(i * row_stride + j * col_stride).data; }
  Matrix block(int64_t row, int64_t n_rows, int64_t col, int64_t n_cols) const {
    return {dtype, at(row, col), n_rows, n_cols, row_stride, col_stride};
  }
  Matrix shifted(int64_t elements) const {
    const int64_t bytes = elements * static_cast<int64_t>(itemsize(dtype));
    void* const moved = data == nullptr ? nullptr : static_cast<char*>(data) + bytes;
    return {dtype, moved, rows, cols, row_stride, col_stride};
  }
  Matrix row_block(int64_t row, int64_t n_rows) const { return block(row, n_rows, 0, cols); }
  Matrix transposed() const { return {dtype, data, cols, rows, col_stride, row_stride}; }
  /// Row-major without gaps.
  bool is_dense() const {
    return (cols == 1 || col_stride == 1) && (rows == 1 || row_stride == cols);
  }
};

inline Matrix dense_matrix(DType dtype, void* data, int64_t rows, int64_t cols) {
  return {dtype, data, rows, cols, cols, 1};
}

/// to = from, rounded to to's dtype (f64 with f64 only).
void copy_matrix(const Matrix& from, const Matrix& to);
/// to = from + bias (+ to when accumulate). from: f32 with unit column stride (f64 for f64); bias:
/// contiguous, of from's dtype, or null.
void add_bias_matrix(const Matrix& from, const void* bias, bool accumulate, const Matrix& to);
/// y = gelu(x), or y *= gelu'(x), of equal dtypes.
void gelu_matrix(const Matrix& x, const Matrix& y, bool gradient);

}  // namespace weft::kernels
