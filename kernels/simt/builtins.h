// CUDA's built-in variables and functions for the host compiler. Only .cu files and the headers in
// kernels/device include this, so that every unit that has device code is instrumented.
//
// Exact functions have CUDA's bits. The approximate ones (__expf, rsqrtf, ...) are computed in
// higher precision and rounded: nearer to the true value than the device's (CUDA C++ Programming
// Guide, "Mathematical Functions").
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/simt/collectives.h"
#include "kernels/simt/emulator.h"
#include "kernels/simt/types.h"

#define threadIdx (::weft::simt::current->index)
#define blockIdx (::weft::simt::current->block->index)
#define blockDim (::weft::simt::launch_shape.block)
#define gridDim (::weft::simt::launch_shape.grid)
inline constexpr int warpSize = 32;

// The caller's place in the source, as a last parameter.
#define WEFT_SIMT_SITE weft::simt::Site site = weft::simt::Site::current()

namespace weft::simt {

template <class T>
uint64_t to_word(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}

template <class T>
T from_word(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

/// The value of another lane of this lane's group of `width`; its own where the source lies
/// outside.
template <class T>
T shuffle_value(unsigned mask, T value, int source, int width, const char* name, const Site& site) {
  const int first = current->lane / width * width;
  const bool is_inside = source >= first && source < first + width;
  return from_word<T>(shuffle(mask, to_word(value), is_inside ? source : -1, name, site));
}

/// Not instrumented: atomic_access says what there is to say.
template <class T, class F>
__attribute__((no_sanitize_thread)) T atomic_update(T* address, F f, const Site& site) {
  atomic_access(address, sizeof(T), site);
  const T old = *address;
  *address = f(old);
  return old;
}

}  // namespace weft::simt

// Synchronisation.

inline void __syncthreads(WEFT_SIMT_SITE) { weft::simt::barrier_sync(0, 0, site); }
inline int __syncthreads_count(int predicate, WEFT_SIMT_SITE) {
  return weft::simt::sync_count(predicate != 0, site);
}
inline int __syncthreads_and(int predicate, WEFT_SIMT_SITE) {
  return weft::simt::sync_count(predicate == 0, site) == 0;
}
inline int __syncthreads_or(int predicate, WEFT_SIMT_SITE) {
  return weft::simt::sync_count(predicate != 0, site) != 0;
}
inline void __syncwarp(unsigned mask = weft::simt::kFullMask, WEFT_SIMT_SITE) {
  weft::simt::sync_warp(mask, site);
}
inline void __threadfence_block() { weft::simt::fence(false); }
inline void __threadfence() { weft::simt::fence(true); }
inline void __threadfence_system() { weft::simt::fence(true); }
inline void __nanosleep(unsigned) { weft::simt::yield(); }

// Warp shuffles, votes, matches, reductions.

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, WEFT_SIMT_SITE) {
  const int lane = weft::simt::current->lane / width * width + (source & (width - 1));
  return weft::simt::shuffle_value(mask, value, lane, width, "__shfl_sync", site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, WEFT_SIMT_SITE) {
  const int lane = weft::simt::current->lane - static_cast<int>(delta);
  return weft::simt::shuffle_value(mask, value, lane, width, "__shfl_up_sync", site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, WEFT_SIMT_SITE) {
  const int lane = weft::simt::current->lane + static_cast<int>(delta);
  return weft::simt::shuffle_value(mask, value, lane, width, "__shfl_down_sync", site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, WEFT_SIMT_SITE) {
  // Unlike the others it may read from a group before this lane's.
  const int lane = weft::simt::current->lane, source = lane ^ lane_mask;
  const int end = lane / width * width + width;
  return weft::simt::from_word<T>(weft::simt::shuffle(
      mask, weft::simt::to_word(value), source < end ? source : -1, "__shfl_xor_sync", site));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, WEFT_SIMT_SITE) {
  return weft::simt::ballot(mask, predicate != 0, "__ballot_sync", site);
}
inline int __all_sync(unsigned mask, int predicate, WEFT_SIMT_SITE) {
  return weft::simt::ballot(mask, predicate == 0, "__all_sync", site) == 0;
}
inline int __any_sync(unsigned mask, int predicate, WEFT_SIMT_SITE) {
  return weft::simt::ballot(mask, predicate != 0, "__any_sync", site) != 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, WEFT_SIMT_SITE) {
  return weft::simt::match_any(mask, weft::simt::to_word(value), site);
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate, WEFT_SIMT_SITE) {
  *predicate = weft::simt::match_any(mask, weft::simt::to_word(value), site) == mask;
  return *predicate ? mask : 0;
}

#define WEFT_SIMT_REDUCE(name, T, redux, expression)                                              \
  inline T name(unsigned mask, T value, WEFT_SIMT_SITE) {                                         \
    const auto join = [](uint32_t x, uint32_t y) {                                                \
      const T a = static_cast<T>(x), b = static_cast<T>(y);                                       \
      return static_cast<uint32_t>(expression);                                                   \
    };                                                                                            \
    return static_cast<T>(                                                                        \
        weft::simt::reduce(mask, static_cast<uint32_t>(value), join, "redux.sync." redux, site)); \
  }
WEFT_SIMT_REDUCE(__reduce_add_sync, unsigned, "add", a + b)
WEFT_SIMT_REDUCE(__reduce_min_sync, int, "min.s32", a < b ? a : b)
WEFT_SIMT_REDUCE(__reduce_min_sync, unsigned, "min.u32", a < b ? a : b)
WEFT_SIMT_REDUCE(__reduce_max_sync, int, "max.s32", a > b ? a : b)
WEFT_SIMT_REDUCE(__reduce_max_sync, unsigned, "max.u32", a > b ? a : b)
WEFT_SIMT_REDUCE(__reduce_and_sync, unsigned, "and", a& b)
WEFT_SIMT_REDUCE(__reduce_or_sync, unsigned, "or", a | b)
WEFT_SIMT_REDUCE(__reduce_xor_sync, unsigned, "xor", a ^ b)
#undef WEFT_SIMT_REDUCE
inline int __reduce_add_sync(unsigned mask, int value, WEFT_SIMT_SITE) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), site));
}

// Atomics on shared and global memory.

#define WEFT_SIMT_ATOMIC(name, expression)                            \
  template <class T>                                                  \
  T name(T* address, std::type_identity_t<T> value, WEFT_SIMT_SITE) { \
    return weft::simt::atomic_update(                                 \
        address, [value](T old) -> T { return expression; }, site);   \
  }
WEFT_SIMT_ATOMIC(atomicAdd, old + value)
WEFT_SIMT_ATOMIC(atomicSub, old - value)
WEFT_SIMT_ATOMIC(atomicExch, ((void)old, value))
WEFT_SIMT_ATOMIC(atomicMin, old < value ? old : value)
WEFT_SIMT_ATOMIC(atomicMax, old > value ? old : value)
WEFT_SIMT_ATOMIC(atomicAnd, old& value)
WEFT_SIMT_ATOMIC(atomicOr, old | value)
WEFT_SIMT_ATOMIC(atomicXor, old ^ value)
WEFT_SIMT_ATOMIC(atomicInc, old >= value ? T(0) : old + 1)
WEFT_SIMT_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef WEFT_SIMT_ATOMIC

template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value,
            WEFT_SIMT_SITE) {
  return weft::simt::atomic_update(
      address,
      [=](T old) -> T { return std::memcmp(&old, &compare, sizeof(T)) == 0 ? value : old; }, site);
}

// Loads with cache hints.

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// Integer and bit functions.

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1;
}
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(uint64_t{x} * y >> 32);
}
inline int __mulhi(int x, int y) { return static_cast<int>(int64_t{x} * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }

// Arithmetic with a stated rounding: the host rounds to nearest even.

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

// Approximations of the device.

inline float rsqrtf(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }
inline float __exp2f(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }
inline float __logf(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }
inline float __log2f(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
inline float __fdividef(float x, float y) { return x / y; }
inline float normcdff(float x) {
  return static_cast<float>(0.5 * std::erfc(-static_cast<double>(x) * 0.70710678118654752440));
}

// CUDA's overloads in the global namespace.

#define WEFT_SIMT_MIN_MAX(T)                          \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
WEFT_SIMT_MIN_MAX(int)
WEFT_SIMT_MIN_MAX(unsigned)
WEFT_SIMT_MIN_MAX(long)
WEFT_SIMT_MIN_MAX(unsigned long)
WEFT_SIMT_MIN_MAX(long long)
WEFT_SIMT_MIN_MAX(unsigned long long)
#undef WEFT_SIMT_MIN_MAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
