#include "kernels/gemm/f64_panels.h"

#include <array>
#include <vector>

#include "core/parallel.h"

namespace weft::kernels {
namespace {

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

/// [M, K], dense, times a factor.
Tensor widen_rows(const Matrix& a, float factor) {
  const Tensor result = Tensor::empty({a.rows, a.cols}, DType::f64);
  const int64_t rows = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, a.cols));
  parallel_for(a.rows, rows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer((end - begin) * a.cols);
    read_matrix(a.row_block(begin, end - begin), buffer.data());
    double* to = result.data<double>() + begin * a.cols;
    for (float x : buffer) *to++ = static_cast<double>(x) * static_cast<double>(factor);
  });
  return result;
}

/// [panels, K, kPanelColumns].
Tensor widen_panels(const Matrix& b) {
  const int64_t panels = (b.cols + kPanelColumns - 1) / kPanelColumns, k = b.rows;
  const Tensor result = Tensor::empty({panels, k, kPanelColumns}, DType::f64);
  parallel_for(panels, 1, [&](int64_t panel, int64_t) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, b.cols - first);
    std::vector<float> buffer(k * columns);
    read_matrix(b.block(0, k, first, columns), buffer.data());
    double* to = result.data<double>() + panel * k * kPanelColumns;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        *to++ = j < columns ? static_cast<double>(buffer[i * columns + j]) : 0;
      }
    }
  });
  return result;
}

}  // namespace

void for_each_tile(const GemmProduct& p, float factor, int64_t height,
                   const std::function<void(const F64Tile&)>& f) {
  const Tensor rows = widen_rows(p.a, factor), panels = widen_panels(p.b);
  const double *const a = rows.data<double>(), *const b = panels.data<double>();
  const int64_t k = p.a.cols, row_tiles = (p.c.rows + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, 65536 / (height * kPanelColumns * (k + 1)));
  parallel_for(panels.size(0) * row_tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % row_tiles * height, panel = task / row_tiles;
      const int64_t column = panel * kPanelColumns;
      f({row, std::min(height, p.c.rows - row), column, std::min(kPanelColumns, p.c.cols - column),
         k, a + row * k, b + panel * k * kPanelColumns});
    }
  });
}

}  // namespace weft::kernels
