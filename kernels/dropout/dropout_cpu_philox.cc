// Sixteen Philox blocks at a time, one per lane, so that the rounds are vector multiplications; the
// generator, not memory, is the limiter.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout/dropout_cpu_philox.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "core/philox.h"
#include "kernels/copy/copy.h"
#include "kernels/dropout/dropout.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kWords = 4 * kLanes;  // of one call to philox_words

/// The words of blocks offset, ..., offset + 15 in order.
void philox_words(uint64_t seed, uint64_t stream, uint64_t offset, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t block = offset + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(block);
    c1[i] = static_cast<uint32_t>(block >> 32);
    c2[i] = static_cast<uint32_t>(stream);
    c3[i] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

template <class T>
void run(const DropoutProblem& p, const T* x, T* y) {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Acc factor = p.p < 1 ? static_cast<Acc>(1 / (1 - p.p)) : Acc{0};
  const double threshold = p.p;
  constexpr int64_t kGrain = 256 * kWords;
  parallel_for(p.x.numel(), kGrain, [&](int64_t begin, int64_t end) HWY_ATTR {
    uint32_t words[kWords];
    for (int64_t first = begin; first < end; first += kWords) {
      philox_words(p.seed, p.stream, p.offset + static_cast<uint64_t>(first / 4), words);
      const int64_t n = std::min(kWords, end - first);
      for (int64_t i = 0; i < n; ++i) {
        const bool keep = uniform_from_bits(words[i]) >= threshold;
        y[first + i] = keep ? static_cast<T>(static_cast<Acc>(x[first + i]) * factor) : T{};
      }
    }
  });
}

void dropout_words(const DropoutProblem& p) {
  const Tensor x = contiguous(p.x);
  const Tensor y =
      p.y.is_contiguous() ? p.y : Tensor::empty(p.y.shape(), p.y.dtype(), p.y.device());
  switch (p.dtype()) {
    case DType::f64:
      run(p, x.data<double>(), y.data<double>());
      break;
    case DType::f32:
      run(p, x.data<float>(), y.data<float>());
      break;
    case DType::f16:
      run(p, x.data<f16>(), y.data<f16>());
      break;
    case DType::bf16:
      run(p, x.data<bf16>(), y.data<bf16>());
      break;
    default:
      WEFT_ASSERT(false);
  }
  if (!p.y.is_contiguous()) copy({.x = y, .y = p.y});
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(dropout_words);

void dropout_cpu_philox(const DropoutProblem& problem) {
  HWY_DYNAMIC_DISPATCH(dropout_words)(problem);
}

}  // namespace weft::kernels
#endif
