// Every case of gemm: what its test checks, its bench times and the roofline report draws.
#pragma once

#include "kernels/gemm/gemm_test_cases.h"
#include "kernels/gemm/gemm_timed_cases.h"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {

inline OpTable gemm_table() {
  GemmCases cases;
  add_gemm_test_cases(cases);
  add_gemm_timed_cases(cases);
  OpTable table = make_table(gemm_op(), cases.list, gemm_reference);
  table.tiles = {std::begin(kWgmmaTileColumns), std::end(kWgmmaTileColumns)};
  table.force_tile = [](int columns, int blocks) { forced_wgmma_tile() = {columns, blocks}; };
  table.of_shape = [](std::string_view shape, DType dtype) -> std::optional<CaseEntry> {
    const std::optional<Case<GemmProblem>> c = gemm_of_shape(shape, dtype);
    if (!c) return {};
    return make_entry(gemm_op(), *c, gemm_reference);
  };
  return table;
}

}  // namespace weft::kernels
