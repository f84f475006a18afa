// Sums of squares with the same bits on every instruction set. Included once per Highway target, as
// kernels/simd/rows_inl.h is.

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_MULTI_TENSOR_SQUARES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_MULTI_TENSOR_SQUARES_INL_H
#undef WEFT_KERNELS_MULTI_TENSOR_SQUARES_INL_H
#else
#define WEFT_KERNELS_MULTI_TENSOR_SQUARES_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

/// Squares in f64, where those of f32 are exact, added in 4 vectors of 8 parts, whatever the
/// instruction set.
class SumOfSquares {
 public:
  /// Adds the squares of n elements of float or double, element i to part i mod 32.
  template <class T>
  void add(const T* x, int64_t n) {
    const int64_t whole = n / kParts * kParts;
    const hn::CappedTag<double, 8> d;
    const size_t lanes = hn::Lanes(d);
    const auto load = [&](const T* p) HWY_ATTR {
      if constexpr (std::is_same_v<T, double>) {
        return hn::LoadU(d, p);
      } else {
        return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, decltype(d)>(), p));
      }
    };
    for (size_t part = 0; part < kParts; part += 4 * lanes) {
      double* const parts = parts_ + part;
      auto a0 = hn::Load(d, parts), a1 = hn::Load(d, parts + lanes);
      auto a2 = hn::Load(d, parts + 2 * lanes), a3 = hn::Load(d, parts + 3 * lanes);
      for (int64_t i = part; i < whole; i += kParts) {
        const auto v0 = load(x + i), v1 = load(x + i + lanes);
        const auto v2 = load(x + i + 2 * lanes), v3 = load(x + i + 3 * lanes);
        a0 = hn::Add(a0, hn::Mul(v0, v0));
        a1 = hn::Add(a1, hn::Mul(v1, v1));
        a2 = hn::Add(a2, hn::Mul(v2, v2));
        a3 = hn::Add(a3, hn::Mul(v3, v3));
      }
      hn::Store(a0, d, parts);
      hn::Store(a1, d, parts + lanes);
      hn::Store(a2, d, parts + 2 * lanes);
      hn::Store(a3, d, parts + 3 * lanes);
    }
    for (int64_t i = whole; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      parts_[i - whole] += v * v;
    }
  }

  /// The sum; the parts are used up.
  double total() {
    for (size_t width = kParts / 2; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) parts_[i] += parts_[i + width];
    }
    return parts_[0];
  }

 private:
  static constexpr size_t kParts = 32;
  alignas(64) double parts_[kParts] = {};
};

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
