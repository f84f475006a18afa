// Vectors of floats loaded from and stored to f32, bf16, f16 and tf32 memory, rounded to nearest
// even as core/float_formats.h does (tf32: ties away).
//
// Included once per Highway target, inside no namespace:
//   #include "kernels/simd/convert_inl.h"
//   HWY_BEFORE_NAMESPACE(); namespace weft::kernels::HWY_NAMESPACE { ... load_f32(d, p) ... }

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_SIMD_CONVERT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_CONVERT_INL_H
#undef WEFT_KERNELS_SIMD_CONVERT_INL_H
#else
#define WEFT_KERNELS_SIMD_CONVERT_INL_H
#endif

#include <hwy/highway.h>

#include "core/float_formats.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const tf32* p) {
  return hn::LoadU(d, reinterpret_cast<const float*>(p));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> du16;
  const hn::RebindToUnsigned<D> du32;
  const auto wide = hn::PromoteTo(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(wide));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const f16* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(d, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  HWY_ALIGN float wide[HWY_MAX_BYTES / 4];
  for (size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = static_cast<float>(p[i]);
  return hn::Load(d, wide);
#endif
}

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> v, tf32* p) {
  HWY_ALIGN float wide[HWY_MAX_BYTES / 4];
  hn::Store(v, d, wide);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = tf32(wide[i]);
}

// Highway 1.0.3 truncates when it narrows to bf16, hence the integer arithmetic of core's bf16.
template <class D>
HWY_INLINE void store_f32([[maybe_unused]] D d, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<uint16_t, D> du16;
  const hn::RebindToUnsigned<D> du32;
  const auto bits = hn::BitCast(du32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du32, 0x7fff)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du32, 0x40));
  const auto is_nan = hn::RebindMask(du32, hn::IsNaN(v));
  const auto code = hn::IfThenElse(is_nan, quiet, rounded);
  hn::StoreU(hn::TruncateTo(du16, code), du16, reinterpret_cast<uint16_t*>(p));
}

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> v, f16* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, D> df16;
  hn::StoreU(hn::DemoteTo(df16, v), df16, reinterpret_cast<hwy::float16_t*>(p));
#else
  HWY_ALIGN float wide[HWY_MAX_BYTES / 4];
  hn::Store(v, d, wide);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = f16(wide[i]);
#endif
}

/// The first n < Lanes elements; lanes beyond hold `fill`.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_f32_n(D d, const T* p, size_t n, float fill = 0) {
  HWY_ALIGN T part[HWY_MAX_BYTES / 4];
  for (size_t i = 0; i < hn::Lanes(d); ++i) part[i] = i < n ? p[i] : T(fill);
  return load_f32(d, part);
}

/// Stores the first n < Lanes lanes.
template <class D, class T>
HWY_INLINE void store_f32_n(D d, hn::Vec<D> v, T* p, size_t n) {
  HWY_ALIGN T part[HWY_MAX_BYTES / 4];
  store_f32(d, v, part);
  for (size_t i = 0; i < n; ++i) p[i] = part[i];
}

/// Calls f(i, n) for i = 0, Lanes, 2 Lanes, ...: n is Lanes but in a last, partial step.
template <class D, class F>
HWY_INLINE void for_each_vector(D d, size_t count, F&& f) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) f(i, lanes);
  if (i < count) f(i, count - i);
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
