#include "kernels/gemm/f64_panels.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/parallel.h"

namespace weft::kernels {
namespace {

constexpr int64_t kElementsPerTask = 32768;

/// The value of each fp8 code.
template <class T>
const std::array<float, 256>& code_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> list{};
    for (int i = 0; i < 256; ++i) {
      list[i] = static_cast<float>(T::from_bits(static_cast<uint8_t>(i)));
    }
    return list;
  }();
  return values;
}

/// A matrix of any floating dtype but f64 as dense f32.
void read_matrix(const Matrix& m, float* out) {
  if (itemsize(m.dtype) > 1) {
    return copy_matrix(m, dense_matrix(DType::f32, out, m.rows, m.cols));
  }
  const std::array<float, 256>& values =
      m.dtype == DType::f8e4m3 ? code_values<f8e4m3>() : code_values<f8e5m2>();
  for (int64_t i = 0; i < m.rows; ++i) {
    const auto* row = static_cast<const uint8_t*>(m.at(i, 0));
    for (int64_t j = 0; j < m.cols; ++j) *out++ = values[row[j * m.col_stride]];
  }
}

}  // namespace

F64Rows widen_rows(const Matrix& a, float factor) {
  F64Rows result{Tensor::empty({a.rows, a.cols}, DType::f64), a.cols};
  double* const out = result.storage.data<double>();
  const int64_t rows = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, a.cols));
  parallel_for(a.rows, rows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer((end - begin) * a.cols);
    read_matrix(a.block(begin, end - begin, 0, a.cols), buffer.data());
    double* to = out + begin * a.cols;
    for (float x : buffer) *to++ = static_cast<double>(x) * static_cast<double>(factor);
  });
  return result;
}

F64Panels widen_panels(const Matrix& b) {
  const int64_t panels = panel_count(b.cols), k = b.rows;
  F64Panels result{Tensor::empty({panels, k, kPanelColumns}, DType::f64), k};
  double* const out = result.storage.data<double>();
  parallel_for(panels, 1, [&](int64_t panel, int64_t) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, b.cols - first);
    std::vector<float> buffer(k * columns);
    read_matrix(b.block(0, k, first, columns), buffer.data());
    double* to = out + panel * k * kPanelColumns;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        *to++ = j < columns ? static_cast<double>(buffer[i * columns + j]) : 0;
      }
    }
  });
  return result;
}

}  // namespace weft::kernels
