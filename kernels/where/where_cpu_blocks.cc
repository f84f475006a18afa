// Blocks of 1024 elements moved as bits (kernels/elementwise), one vectorised loop per element
// size. Memory-bound.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/where/where_cpu_blocks.cc"
#include "core/simd/targets.h"

#include "kernels/elementwise/block_io.h"
#include "kernels/where/where.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class Word>
void select_loop(const uint8_t* condition, const void* left, const void* right, void* target,
                 int64_t n) {
  const Word* a = static_cast<const Word*>(left);
  const Word* b = static_cast<const Word*>(right);
  Word* y = static_cast<Word*>(target);
  // y is a or b or apart from them: every element depends on its own place only.
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const Word from_a = a[i], from_b = b[i];
    y[i] = condition[i] ? from_a : from_b;
  }
}

void select_elements(const uint8_t* condition, const void* a, const void* b, void* y, int64_t n,
                     size_t itemsize) {
  switch (itemsize) {
    case 1:
      return select_loop<uint8_t>(condition, a, b, y, n);
    case 2:
      return select_loop<uint16_t>(condition, a, b, y, n);
    case 4:
      return select_loop<uint32_t>(condition, a, b, y, n);
    default:
      return select_loop<uint64_t>(condition, a, b, y, n);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(select_elements);

void where_cpu_blocks(const WhereProblem& p) {
  const Walk walk({p.y, p.condition, p.a, p.b});
  const DType dtype = p.dtype();
  transform_blocks(walk, {p.y, dtype}, {{p.condition, DType::boolean}, {p.a, dtype}, {p.b, dtype}},
                   [&](const void* condition, const void* a, const void* b, void* y, int64_t n) {
                     HWY_DYNAMIC_DISPATCH(select_elements)
                     (static_cast<const uint8_t*>(condition), a, b, y, n, itemsize(dtype));
                   });
}

}  // namespace weft::kernels
#endif
