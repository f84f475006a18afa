// Elements are widened to f32 in blocks of L1's size. The magnitude is compared as its bits, of
// which a NaN's are the greatest. Rounding is integer arithmetic on the bits of a normal result;
// adding and subtracting the float whose last place is the format's smallest subnormal rounds the
// others.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fp8_quantize/fp8_quantize_cpu_blocks.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <bit>

#include "core/parallel.h"
#include "kernels/copy/copy.h"
#include "kernels/fp8_quantize/fp8_quantize.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

using I32 = hn::ScalableTag<int32_t>;

/// Codes of n floats times scale, in a format of M mantissa bits and smallest normal exponent
/// kMinExponent.
template <int M, int kMinExponent>
void encode(const float* x, int64_t n, float scale, float max, int32_t* codes) {
  const F32 d;
  const I32 di;
  constexpr int kShift = 23 - M;
  constexpr int32_t kRebias = (126 + kMinExponent) << M;  // the exponent field 1 is kMinExponent
  const float step = std::bit_cast<float>((127 + 23 + kMinExponent - M) << 23);
  const auto smallest = hn::Set(d, std::bit_cast<float>((127 + kMinExponent) << 23));
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto v = hn::Mul(load_part(d, x + i, m), hn::Set(d, scale));
    const auto magnitude = hn::Min(hn::Abs(v), hn::Set(d, max));
    const auto bits = hn::BitCast(di, magnitude);
    const auto odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(di, 1));
    const auto rounded = hn::Add(hn::Add(bits, odd), hn::Set(di, (1 << (kShift - 1)) - 1));
    const auto normal = hn::Sub(hn::ShiftRight<kShift>(rounded), hn::Set(di, kRebias));
    const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(magnitude, hn::Set(d, step))),
                                   hn::BitCast(di, hn::Set(d, step)));
    auto code = hn::IfThenElse(hn::RebindMask(di, hn::Lt(magnitude, smallest)), subnormal, normal);
    // Highway's Ne is false of NaNs.
    const auto is_nan = hn::Gt(hn::BitCast(di, hn::Abs(v)), hn::Set(di, 0x7f800000));
    code = hn::IfThenElse(is_nan, hn::Set(di, 0x7f), code);
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(di, v)), hn::Set(di, 0x80));
    store_part(di, hn::Or(code, sign), codes + i, m);
  });
}

/// The greatest of n magnitudes' bits.
int32_t max_bits(const float* x, int64_t n) {
  const F32 d;
  const I32 di;
  auto max = hn::Zero(di);
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    max = hn::Max(max, hn::BitCast(di, hn::Abs(load_part(d, x + i, m))));
  });
  return hn::GetLane(hn::MaxOfLanes(di, max));
}

/// Elements [begin, end) of contiguous x; returns the bits of their largest magnitude.
int32_t quantize_range(const Fp8QuantizeProblem& p, const Tensor& x, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN float buffer[kBlock];
  HWY_ALIGN int32_t codes[kBlock];
  const auto scale = static_cast<float>(p.scale);
  int32_t max = 0;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const float* const block = read_row(x.dtype(), x.raw(), first, 1, n, buffer);
    max = std::max(max, max_bits(block, n));
    if (!p.y.defined()) continue;
    if (p.y.dtype() == DType::f8e4m3) {
      encode<3, -6>(block, n, scale, 448, codes);
    } else {
      encode<2, -14>(block, n, scale, 57344, codes);
    }
    uint8_t* const y = static_cast<uint8_t*>(p.y.raw()) + first;
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<uint8_t>(codes[i]);
  }
  return max;
}

void quantize(const Fp8QuantizeProblem& p) {
  constexpr int64_t kGrain = 16384;
  const Tensor x = contiguous(p.x);
  WEFT_ASSERT(!p.y.defined() || (p.y.is_contiguous() && p.y.shape() == x.shape()));
  std::vector<int32_t> maxima((x.numel() + kGrain - 1) / kGrain);
  parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    maxima[begin / kGrain] = quantize_range(p, x, begin, end);
  });
  if (!p.amax.defined()) return;
  int32_t max = 0;
  for (int32_t m : maxima) max = std::max(max, m);
  *p.amax.data<float>() = std::bit_cast<float>(max);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(fp8_quantize_cpu_blocks, Fp8QuantizeProblem, quantize)
#endif
