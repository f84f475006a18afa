// The exponential of a vector of f32 or f64, NaN for NaN. Highway 1.0.3's Exp gives 0 for a NaN,
// which would hide one from everything downstream. Included once per Highway target, as
// convert_inl.h is.

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_SIMD_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_EXP_INL_H
#undef WEFT_KERNELS_SIMD_EXP_INL_H
#else
#define WEFT_KERNELS_SIMD_EXP_INL_H
#endif

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

/// exp(x) with Highway's relative error of 1 ulp; 0 below the normal range.
template <class D, class V>
HWY_INLINE V exp_or_nan(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
