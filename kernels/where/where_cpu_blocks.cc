// Blocks of 1024 elements moved as bits (kernels/elementwise), one vectorised loop per element
// size. Memory-bound.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/where/where_cpu_blocks.cc"
#include "core/simd/targets_inl.h"

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

WhereLoop select_loop_of(size_t itemsize) {
  return with_word(itemsize, [](auto word) -> WhereLoop { return select_loop<decltype(word)>; });
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(select_loop_of);

WhereLoop where_loop(size_t itemsize) { return HWY_DYNAMIC_DISPATCH(select_loop_of)(itemsize); }

void where_cpu_blocks(const WhereProblem& p) {
  const Walk walk({p.y, p.condition, p.a, p.b});
  const DType dtype = p.dtype();
  const WhereLoop loop = where_loop(itemsize(dtype));
  transform_blocks(walk, {p.y, dtype}, {{p.condition, DType::boolean}, {p.a, dtype}, {p.b, dtype}},
                   [&](const void* condition, const void* a, const void* b, void* y, int64_t n) {
                     loop(static_cast<const uint8_t*>(condition), a, b, y, n);
                   });
}

}  // namespace weft::kernels
#endif
