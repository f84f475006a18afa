// Operands of a product widened to f64, in the order in which a microkernel reads them.
#pragma once

#include <algorithm>

#include "core/parallel.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"

namespace weft::kernels {

/// Columns of B that a microkernel takes at once.
inline constexpr int64_t kPanelColumns = 16;

/// A [M, K], times a factor, as dense rows.
struct F64Rows {
  Tensor storage;
  int64_t k = 0;

  const double* row(int64_t i) const { return storage.data<double>() + i * k; }
};

/// B [K, N] as panels of kPanelColumns columns, each [K, kPanelColumns]; the last is filled with
/// zeros.
struct F64Panels {
  Tensor storage;
  int64_t k = 0;

  const double* panel(int64_t j) const { return storage.data<double>() + j * k * kPanelColumns; }
};

inline int64_t panel_count(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

/// Any floating dtype but f64; in parallel. The factor is a float: its product with a value of up
/// to 29 significant bits is exact.
F64Rows widen_rows(const Matrix& a, float factor = 1);
F64Panels widen_panels(const Matrix& b);

/// Rows [row, row + rows) of C, by columns [column, column + columns) and their panel of B.
struct PanelTile {
  int64_t row, rows, column, columns;
  const double* panel;
};

/// Calls f(tile) for tiles of up to `height` rows that cover c, on all threads.
template <class F>
void for_each_tile(const Matrix& c, const F64Panels& panels, int64_t height, F&& f) {
  const int64_t row_tiles = (c.rows + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, 65536 / (height * kPanelColumns * (panels.k + 1)));
  parallel_for(panel_count(c.cols) * row_tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % row_tiles * height, column = task / row_tiles * kPanelColumns;
      f(PanelTile{row, std::min(height, c.rows - row), column,
                  std::min(kPanelColumns, c.cols - column), panels.panel(task / row_tiles)});
    }
  });
}

}  // namespace weft::kernels
