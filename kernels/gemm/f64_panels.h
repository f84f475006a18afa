// Operands of a product widened to f64, in the order in which a microkernel reads them.
#pragma once

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

}  // namespace weft::kernels
