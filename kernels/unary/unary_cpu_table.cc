// One lookup an element. A function of a 16-bit float has 65536 values, 128 KiB: unary_cpu_blocks
// computes them at the first use, so the bits are its own. What a training feeds GELU lies in a few
// binades, whose part of the table stays in L1; then two loads an element are the limiter, and GELU
// takes less than half the time of computing it with AVX-512.
#include <cstdint>
#include <mutex>
#include <numeric>
#include <vector>

#include "kernels/elementwise/block_io.h"
#include "kernels/unary/unary.h"

namespace weft::kernels {

void unary_cpu_blocks(const UnaryProblem& p);

namespace {

/// The results' codes by x's code. Made once, by whichever thread comes first.
const uint16_t* table_of(UnaryOp op, DType dtype) {
  struct Entry {
    std::once_flag once;
    std::vector<uint16_t> codes;
  };
  static Entry entries[2][static_cast<size_t>(UnaryOp::is_finite) + 1];
  Entry& entry = entries[dtype == DType::bf16][static_cast<size_t>(op)];
  std::call_once(entry.once, [&] {
    constexpr int64_t kCodes = 1 << 16;
    const Tensor x = Tensor::empty({kCodes}, dtype), y = Tensor::empty({kCodes}, dtype);
    auto* const codes = static_cast<uint16_t*>(x.raw());
    std::iota(codes, codes + kCodes, uint16_t{0});
    unary_cpu_blocks({.op = op, .x = x, .y = y});
    const auto* const results = static_cast<const uint16_t*>(y.raw());
    entry.codes.assign(results, results + kCodes);
  });
  return entry.codes.data();
}

}  // namespace

bool unary_fits_table(const UnaryProblem& p) {
  return p.op > UnaryOp::exp && p.op <= UnaryOp::gelu_tanh && p.x.dtype() == p.y.dtype();
}

void unary_cpu_table(const UnaryProblem& p) {
  const Walk walk({p.y, p.x});
  const DType dtype = p.x.dtype();
  const uint16_t* const table = table_of(p.op, dtype);
  const auto look_up = [table](const uint16_t* x, uint16_t* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = table[x[i]];
  };
  if (walk.is_dense(0) && walk.is_dense(1)) {
    const auto* const x = static_cast<const uint16_t*>(p.x.raw());
    auto* const y = static_cast<uint16_t*>(p.y.raw());
    parallel_for(walk.numel(), 16 * kBlock,
                 [&](int64_t begin, int64_t end) { look_up(x + begin, y + begin, end - begin); });
    return;
  }
  parallel_blocks(walk, [&](int64_t first, int64_t last) {
    BlockReader x(walk, 1, p.x, dtype);
    BlockWriter y(walk, 0, p.y, dtype);
    for (int64_t i = first; i < last; ++i) {
      const Block block = walk.block(i);
      look_up(static_cast<const uint16_t*>(x.read(block)), static_cast<uint16_t*>(y.target(block)),
              block.size());
      y.commit(block);
    }
  });
}

}  // namespace weft::kernels
