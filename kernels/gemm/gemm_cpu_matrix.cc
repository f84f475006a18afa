// Rows are widened to f32 where their dtype needs it, a block of L1's size at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu_matrix.cc"
#include "core/simd/targets_inl.h"

#include <cmath>
#include <numbers>

#include "kernels/gemm/matrix.h"
#include "kernels/simd/convert_inl.h"
#include "kernels/simd/math_inl.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 1024;  // floats: three blocks fit in L1

/// Calls f(row, column, n) for blocks of at most kBlock columns of every row.
template <class F>
void for_each_block(const Matrix& m, F&& f) {
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; j += kBlock) f(i, j, std::min(kBlock, m.cols - j));
  }
}

template <class T>
void move_rows(const Matrix& from, const Matrix& to) {
  for (int64_t i = 0; i < from.rows; ++i) {
    const T* p = static_cast<const T*>(from.at(i, 0));
    T* q = static_cast<T*>(to.at(i, 0));
    if (from.col_stride == 1 && to.col_stride == 1) {
      // Rows are often one head of 64 or 128 bytes: too short for a call of memcpy.
      const hn::ScalableTag<T> d;
      const auto lanes = static_cast<int64_t>(hn::Lanes(d));
      int64_t j = 0;
      for (; j + lanes <= from.cols; j += lanes) hn::StoreU(hn::LoadU(d, p + j), d, q + j);
      for (; j < from.cols; ++j) q[j] = p[j];
    } else {
      for (int64_t j = 0; j < from.cols; ++j) q[j * to.col_stride] = p[j * from.col_stride];
    }
  }
}

void copy_rows(const Matrix& from, const Matrix& to) {
  if (from.dtype == to.dtype) {
    switch (itemsize(from.dtype)) {
      case 2:
        return move_rows<uint16_t>(from, to);
      case 4:
        return move_rows<uint32_t>(from, to);
      case 8:
        return move_rows<uint64_t>(from, to);
      default:
        WEFT_ASSERT(false);
    }
  }
  HWY_ALIGN float buffer[kBlock];
  for_each_block(from, [&](int64_t i, int64_t j, int64_t n) {
    float* target = row_target(to.dtype, to.at(i, j), 0, to.col_stride, buffer);
    const float* row = read_row(from.dtype, from.at(i, j), 0, from.col_stride, n, target);
    write_row(row, n, to.dtype, to.at(i, j), 0, to.col_stride);
  });
}

template <class Acc>
void add_bias(const Matrix& from, const void* bias_row, bool accumulate, const Matrix& to) {
  const Acc* const bias = static_cast<const Acc*>(bias_row);
  HWY_ALIGN Acc buffer[kBlock];
  HWY_ALIGN Acc old[kBlock];
  for_each_block(from, [&](int64_t i, int64_t j, int64_t n) {
    const Acc* row = static_cast<const Acc*>(from.at(i, j));
    for (int64_t k = 0; k < n; ++k) buffer[k] = bias ? row[k] + bias[j + k] : row[k];
    if (accumulate) {
      const Acc* before = read_row(to.dtype, to.at(i, j), 0, to.col_stride, n, old);
      for (int64_t k = 0; k < n; ++k) buffer[k] += before[k];
    }
    write_row(buffer, n, to.dtype, to.at(i, j), 0, to.col_stride);
  });
}

void add_bias_rows(const Matrix& from, const void* bias, bool accumulate, const Matrix& to) {
  from.dtype == DType::f64 ? add_bias<double>(from, bias, accumulate, to)
                           : add_bias<float>(from, bias, accumulate, to);
}

double normal_distribution(double x) { return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2); }

void gelu_rows_f64(const Matrix& x, const Matrix& y, bool gradient) {
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) {
      const double v = *static_cast<const double*>(x.at(i, j));
      double& out = *static_cast<double*>(y.at(i, j));
      const double density =
          std::exp(-v * v / 2) / (std::numbers::sqrt2 / std::numbers::inv_sqrtpi);
      out = gradient ? out * (normal_distribution(v) + v * density) : v * normal_distribution(v);
    }
  }
}

/// y = gelu(x), or y *= gelu'(x).
void gelu_rows(const Matrix& x, const Matrix& y, bool gradient) {
  if (x.dtype == DType::f64) return gelu_rows_f64(x, y, gradient);
  const F32 d;
  HWY_ALIGN float in[kBlock];
  HWY_ALIGN float old[kBlock];
  HWY_ALIGN float out[kBlock];
  for_each_block(x, [&](int64_t i, int64_t j, int64_t n) HWY_ATTR {
    const float* row = read_row(x.dtype, x.at(i, j), 0, x.col_stride, n, in);
    float* target = row_target(y.dtype, y.at(i, j), 0, y.col_stride, out);
    if (gradient) {
      const float* factor = read_row(y.dtype, y.at(i, j), 0, y.col_stride, n, old);
      for_each_vector(d, n, [&](size_t k, size_t m) HWY_ATTR {
        const auto slope = gelu_erf_derivative_f32(d, load_part(d, row + k, m));
        store_part(d, hn::Mul(load_part(d, factor + k, m), slope), target + k, m);
      });
    } else {
      for_each_vector(d, n, [&](size_t k, size_t m) HWY_ATTR {
        store_part(d, gelu_erf_f32(d, load_part(d, row + k, m)), target + k, m);
      });
    }
    write_row(target, n, y.dtype, y.at(i, j), 0, y.col_stride);
  });
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(copy_rows);
HWY_EXPORT(add_bias_rows);
HWY_EXPORT(gelu_rows);

void copy_matrix(const Matrix& from, const Matrix& to) {
  // Columns are the better rows where they are the closer neighbours in memory.
  if (from.col_stride != 1 && from.row_stride == 1 &&
      (to.col_stride != 1 || from.rows >= from.cols)) {
    return HWY_DYNAMIC_DISPATCH(copy_rows)(from.transposed(), to.transposed());
  }
  HWY_DYNAMIC_DISPATCH(copy_rows)(from, to);
}

void add_bias_matrix(const Matrix& from, const void* bias, bool accumulate, const Matrix& to) {
  HWY_DYNAMIC_DISPATCH(add_bias_rows)(from, bias, accumulate, to);
}

void gelu_matrix(const Matrix& x, const Matrix& y, bool gradient) {
  HWY_DYNAMIC_DISPATCH(gelu_rows)(x, y, gradient);
}

}  // namespace weft::kernels
#endif
