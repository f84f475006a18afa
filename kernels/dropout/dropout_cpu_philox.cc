// 1024 Philox words at a time in vectors (kernels/simd/philox_inl.h), then a loop that the compiler
// vectorises. The generator, not memory, is the limiter.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout/dropout_cpu_philox.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/copy/copy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/simd/philox_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void run(const DropoutProblem& p, const Tensor& from, const Tensor& to) {
  const T* const x = from.data<T>();
  T* const y = to.data<T>();
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Acc factor = static_cast<Acc>(p.factor());
  const uint32_t threshold = p.threshold();
  const uint64_t start = p.drawn_offset();
  constexpr int64_t kWords = 1024, kGrain = 16 * kWords;
  parallel_for(p.x.numel(), kGrain, [&](int64_t begin, int64_t end) HWY_ATTR {
    alignas(64) uint32_t words[kWords];
    for (int64_t first = begin; first < end; first += kWords) {
      const int64_t n = std::min(kWords, end - first);
      philox_words(p.seed, p.stream, start + static_cast<uint64_t>(first / 4), (n + 3) / 4, words);
      // y is x or apart from it: every element depends on its own place only.
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const Acc scaled = static_cast<Acc>(x[first + i]) * factor;
        y[first + i] = static_cast<T>(words[i] >> 9 >= threshold ? scaled : Acc{0});
      }
    }
  });
}

void dropout_words(const DropoutProblem& p) {
  const Tensor x = contiguous(p.x);
  const Tensor y = contiguous_output(p.y);
  visit_dtype(p.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (kComputeTypes.contains(dtype_of<T>())) run<T>(p, x, y);
  });
  finish_output(y, p.y);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(dropout_cpu_philox, DropoutProblem, dropout_words)
#endif
