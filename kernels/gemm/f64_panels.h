// A product's operands widened to f64, in the order in which a microkernel reads them.
#pragma once

#include <algorithm>
#include <functional>

#include "kernels/gemm/gemm_batch.h"

namespace weft::kernels {

/// Columns of B that a microkernel takes at once.
inline constexpr int64_t kPanelColumns = 16;
/// Rows of A that those of gemm_cpu_exact and gemm_cpu_fp8 take.
inline constexpr int64_t kExactRows = 2, kFp8Rows = 4;

/// Rows [row, row + rows) and columns [column, column + columns) of C, with their rows of A, dense,
/// and their panel of B, [K, kPanelColumns], which zeros fill.
struct F64Tile {
  int64_t row, rows, column, columns, k;
  const double *a, *panel;

  /// Row i of A's; the last one again from there on.
  const double* a_row(int64_t i) const { return a + std::min(i, rows - 1) * k; }
};

/// Calls f(tile) for tiles of up to `height` rows that cover p.c, on all threads. a and b: any
/// floating dtype but f64. A is multiplied by the factor, a float: its product with a value of up
/// to 29 significant bits is exact.
void for_each_tile(const GemmProduct& p, float factor, int64_t height,
                   const std::function<void(const F64Tile&)>& f);

}  // namespace weft::kernels
