// Philox words (core/philox.h) of many consecutive blocks. Included as convert_inl.h is.

#if defined(WEFT_KERNELS_SIMD_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_PHILOX_INL_H
#undef WEFT_KERNELS_SIMD_PHILOX_INL_H
#else
#define WEFT_KERNELS_SIMD_PHILOX_INL_H
#endif

#include <hwy/highway.h>

#include "core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The words of the blocks offset, ..., offset + blocks - 1 of a stream, in order: 4 * blocks of
/// them.
inline void philox_words(uint64_t seed, uint64_t stream, uint64_t offset, int64_t blocks,
                         uint32_t* words) {
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  // A 64-bit lane holds one 32-bit word in its lower half; the upper half is whatever the
  // multiplication left there and nothing reads it before the end. Two groups of lanes hide the
  // multiplication's latency.
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  const auto word = [&](uint64_t x) HWY_ATTR { return hn::Set(d, x & 0xffffffffu); };
  const auto multiply = [&](V a, V b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const V m0 = word(0xD2511F53u), m1 = word(0xCD9E8D57u), low = word(0xffffffffu);
  const V stream_low = word(stream), stream_high = word(stream >> 32);
  for (; done + 2 * lanes <= blocks; done += 2 * lanes) {
    V c0[2], c1[2], c2[2], c3[2];
    for (int g = 0; g < 2; ++g) {
      c0[g] = hn::Add(hn::Set(d, offset + done + g * lanes), hn::Iota(d, 0));
      c1[g] = hn::ShiftRight<32>(c0[g]);
      c2[g] = stream_low;
      c3[g] = stream_high;
    }
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const V k0 = word(key0), k1 = word(key1);
      for (int g = 0; g < 2; ++g) {
        const V p0 = multiply(c0[g], m0), p1 = multiply(c2[g], m1);
        c0[g] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1[g]), k0);
        c1[g] = p1;
        c2[g] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3[g]), k1);
        c3[g] = p0;
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    for (int g = 0; g < 2; ++g) {
      const V first = hn::Or(hn::And(c0[g], low), hn::ShiftLeft<32>(c1[g]));
      const V second = hn::Or(hn::And(c2[g], low), hn::ShiftLeft<32>(c3[g]));
      hn::StoreInterleaved2(first, second, d,
                            reinterpret_cast<uint64_t*>(words + 4 * (done + g * lanes)));
    }
  }
#endif
  for (; done < blocks; ++done) {
    const auto block = philox4x32(seed, stream, offset + done);
    for (int i = 0; i < 4; ++i) words[4 * done + i] = block[i];
  }
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
