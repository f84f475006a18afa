#include "kernels/gemm/f64_panels.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"

namespace weft::kernels {
namespace {

constexpr int64_t kElementsPerTask = 32768;

}  // namespace

F64Rows widen_rows(const Matrix& a, float factor) {
  F64Rows result{Tensor::empty({a.rows, a.cols}, DType::f64), a.cols};
  double* const out = result.storage.data<double>();
  const int64_t rows = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, a.cols));
  parallel_for(a.rows, rows, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer((end - begin) * a.cols);
    copy_matrix(a.block(begin, end - begin, 0, a.cols),
                dense_matrix(DType::f32, buffer.data(), end - begin, a.cols));
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
    copy_matrix(b.block(0, k, first, columns), dense_matrix(DType::f32, buffer.data(), k, columns));
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
