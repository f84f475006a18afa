// One lookup an element. A function of a 16-bit float has 65536 values, 128 KiB: unary_cpu_blocks
// computes them at the first use, so the bits are its own. What a training feeds GELU lies in a few
// binades, whose part of the table stays in L1; then two loads an element are the limiter.
#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/code_table.h"
#include "kernels/unary/unary.h"

namespace weft::kernels {

namespace {

/// The results' codes by x's code.
const uint16_t* table_of(UnaryOp op, DType dtype) {
  static CodeTable<uint16_t> tables[2][static_cast<size_t>(UnaryOp::kIsFinite) + 1];
  CodeTable<uint16_t>& table = tables[dtype == DType::bf16][static_cast<size_t>(op)];
  return table.values(dtype, [&](const Tensor& x) {
    const Tensor y = Tensor::empty(x.shape(), dtype);
    unary_cpu_blocks({.op = op, .x = x, .y = y});
    return y;
  });
}

}  // namespace

bool unary_fits_table(const UnaryProblem& p) {
  const DType dtype = p.y.dtype();
  return p.op > UnaryOp::kExp && p.op <= UnaryOp::kGeluTanh && p.x.dtype() == dtype &&
         unary_blocks(p.op, dtype, dtype).type != dtype;
}

void unary_cpu_table(const UnaryProblem& p) {
  const Walk walk({p.y, p.x});
  const DType dtype = p.x.dtype();
  const uint16_t* const table = table_of(p.op, dtype);
  transform_blocks(walk, {p.y, dtype}, {{p.x, dtype}}, [table](const void* x, void* y, int64_t n) {
    const auto* const codes = static_cast<const uint16_t*>(x);
    auto* const results = static_cast<uint16_t*>(y);
    for (int64_t i = 0; i < n; ++i) results[i] = table[codes[i]];
  });
}

}  // namespace weft::kernels
