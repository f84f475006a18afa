// Rows of tensors whose dtype is known at run time only, read as f32 (or f64) and written from it.
//
// A kernel that widens a row into a buffer in L1, computes there, and rounds on the way out needs
// no instantiation per combination of dtypes. Included as convert_inl.h is.

#if defined(WEFT_KERNELS_SIMD_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_ROWS_INL_H
#undef WEFT_KERNELS_SIMD_ROWS_INL_H
#else
#define WEFT_KERNELS_SIMD_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/view.h"
#include "kernels/simd/convert_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

// Where vectors have no masks in hardware, as before AVX2 and on NEON, a masked load reads a whole
// vector, and a masked store loads, blends and writes one back: also what lies behind the part,
// which may be another thread's, or nobody's. AVX2's may fault there on AMD's processors (AMD64
// Architecture Programmer's Manual, volume 4, VMASKMOVPS), but not within the part's own page.
inline constexpr bool kHasMasks = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;
inline constexpr bool kHasMasksInPages = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;

/// Whether a vector of so many bytes at p may be loaded or stored by a mask.
HWY_INLINE bool may_mask(const void* p, size_t bytes) {
  constexpr uintptr_t kPage = 4096;  // the smallest
  return kHasMasks || reinterpret_cast<uintptr_t>(p) % kPage + bytes <= kPage;
}

/// m <= Lanes elements of Acc; the lanes beyond are 0.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_part(D d, const T* p, size_t m) {
  if (hn::MaxLanes(d) == 1 || m == hn::Lanes(d)) return hn::LoadU(d, p);
  if constexpr (kHasMasksInPages) {
    if (may_mask(p, hn::Lanes(d) * sizeof(T))) return hn::MaskedLoad(hn::FirstN(d, m), d, p);
  }
  HWY_ALIGN T part[hn::MaxLanes(d)] = {};
  std::copy_n(p, m, part);
  return hn::Load(d, part);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_part(D d, hn::Vec<D> v, T* p, size_t m) {
  if (hn::MaxLanes(d) == 1 || m == hn::Lanes(d)) return hn::StoreU(v, d, p);
  if constexpr (kHasMasksInPages) {
    if (may_mask(p, hn::Lanes(d) * sizeof(T))) return hn::BlendedStore(v, hn::FirstN(d, m), d, p);
  }
  HWY_ALIGN T part[hn::MaxLanes(d)];
  hn::Store(v, d, part);
  std::copy_n(part, m, p);
}

/// The sum of f(i, m), a vector of the elements [i, i + m), over [0, n): in four accumulators of
/// Lanes parts each, added in a fixed order.
template <class D, class F>
HWY_INLINE hn::TFromD<D> sum_vectors(D d, size_t n, F&& f) {
  const size_t lanes = hn::Lanes(d);
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a0 = hn::Add(a0, f(i, lanes));
    a1 = hn::Add(a1, f(i + lanes, lanes));
    a2 = hn::Add(a2, f(i + 2 * lanes, lanes));
    a3 = hn::Add(a3, f(i + 3 * lanes, lanes));
  }
  for (; i + lanes <= n; i += lanes) a0 = hn::Add(a0, f(i, lanes));
  if (i < n) a1 = hn::Add(a1, hn::IfThenElseZero(hn::FirstN(d, n - i), f(i, n - i)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a0, a1), hn::Add(a2, a3))));
}

/// Calls f(i) so that [i, i + Lanes) covers [0, n), the last time over again where n is no multiple
/// of Lanes; false when n < Lanes.
template <class D, class F>
HWY_INLINE bool cover(D d, int64_t n, F&& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) return false;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i);
  if (i < n) f(n - lanes);
  return true;
}

template <class T>
HWY_INLINE void widen_row(const T* p, int64_t stride, int64_t n, float* row) {
  const F32 d;
  if constexpr (sizeof(T) > 1) {
    const auto convert = [&](int64_t i) HWY_ATTR { hn::StoreU(load_f32(d, p + i), d, row + i); };
    if (stride == 1 && cover(d, n, convert)) return;
  }
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(p[i * stride]);
}

template <class T>
HWY_INLINE void narrow_row(const float* row, int64_t n, T* p, int64_t stride) {
  const F32 d;
  const auto convert = [&](int64_t i) HWY_ATTR { store_f32(d, hn::LoadU(d, row + i), p + i); };
  if (stride == 1 && cover(d, n, convert)) return;
  for (int64_t i = 0; i < n; ++i) p[i * stride] = T(row[i]);
}

/// Elements offset, offset + stride, ... of the memory at `base`, n of them, as Acc: float for any
/// floating dtype but f64, double for f64. The result is the memory itself where it can be, and
/// otherwise `buffer`, which has room for n.
template <class Acc>
const Acc* read_row(DType dtype, const void* base, int64_t offset, int64_t stride, int64_t n,
                    Acc* buffer) {
  return visit_dtype(dtype, [&]<class T>(TypeTag<T>) HWY_ATTR -> const Acc* {
    const T* p = static_cast<const T*>(base) + offset;
    if constexpr (std::is_same_v<T, Acc>) {
      if (stride == 1) return p;
      for (int64_t i = 0; i < n; ++i) buffer[i] = p[i * stride];
      return buffer;
    } else if constexpr (std::is_same_v<Acc, float> && !std::is_integral_v<T> &&
                         sizeof(T) <= sizeof(float)) {
      widen_row(p, stride, n, buffer);
      return buffer;
    } else {
      WEFT_ASSERT(false);
    }
  });
}

/// Where a row of Acc is to be computed: the memory itself when it holds Acc side by side, else
/// `buffer`. write_row then finishes the job.
template <class Acc>
Acc* row_target(DType dtype, void* base, int64_t offset, int64_t stride, Acc* buffer) {
  return dtype == dtype_of<Acc>() && stride == 1 ? static_cast<Acc*>(base) + offset : buffer;
}

/// Rounds n elements of `row` to f64, f32, bf16 or f16 memory; does nothing when row_target said
/// that the row lies there already.
template <class Acc>
void write_row(const Acc* row, int64_t n, DType dtype, void* base, int64_t offset, int64_t stride) {
  if (dtype == dtype_of<Acc>()) {
    Acc* p = static_cast<Acc*>(base) + offset;
    if (p == row) return;
    for (int64_t i = 0; i < n; ++i) p[i * stride] = row[i];
    return;
  }
  if constexpr (std::is_same_v<Acc, float>) {
    switch (dtype) {
      case DType::bf16:
        return narrow_row(row, n, static_cast<bf16*>(base) + offset, stride);
      case DType::f16:
        return narrow_row(row, n, static_cast<f16*>(base) + offset, stride);
      default:
        break;
    }
  }
  WEFT_ASSERT(false);
}

/// n side-by-side elements to be changed in place: the memory itself when it holds Acc, else
/// `buffer` with the widened elements. write_row puts them back.
template <class Acc>
Acc* open_row(DType dtype, void* base, int64_t offset, int64_t n, Acc* buffer) {
  Acc* const row = row_target(dtype, base, offset, 1, buffer);
  read_row(dtype, base, offset, 1, n, row);
  return row;
}

/// A tensor as rows along one of its axes, numbered in row-major order of the other axes. An
/// undefined tensor has none and is false.
class Rows {
 public:
  Rows() = default;
  explicit Rows(const Tensor& t, int axis = -1) {
    if (!t.defined() || t.numel() == 0) return;
    base_ = t.raw();
    dtype_ = t.dtype();
    stride_ = t.stride(axis);
    const Tensor first = view::select(t, axis, 0);
    if (const auto flat = view::try_reshape(first, {first.numel()})) {
      step_ = flat->strides()[0];
    } else {
      offsets_.reserve(first.numel());
      for_each_offset(first.shape(), first.strides(), [&](int64_t i) { offsets_.push_back(i); });
    }
  }
  /// One number per row.
  static Rows of_scalars(const Tensor& t) {
    return t.defined() ? Rows(view::unsqueeze(t, t.dim())) : Rows();
  }

  explicit operator bool() const { return base_ != nullptr; }
  template <class Acc>
  const Acc* read(int64_t row, int64_t n, Acc* buffer) const {
    return read_row(dtype_, base_, offset(row), stride_, n, buffer);
  }
  template <class Acc>
  Acc* target(int64_t row, Acc* buffer) const {
    return row_target(dtype_, base_, offset(row), stride_, buffer);
  }
  template <class Acc>
  void write(int64_t row, const Acc* values, int64_t n) const {
    write_row(values, n, dtype_, base_, offset(row), stride_);
  }
  template <class Acc>
  Acc& scalar(int64_t row) const {
    WEFT_ASSERT(dtype_ == dtype_of<Acc>());
    return static_cast<Acc*>(base_)[offset(row)];
  }

 private:
  int64_t offset(int64_t row) const { return offsets_.empty() ? row * step_ : offsets_[row]; }

  void* base_ = nullptr;
  DType dtype_ = DType::f32;
  int64_t step_ = 0, stride_ = 1;
  std::vector<int64_t> offsets_;  // of the rows; empty when they are step_ apart
};

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
