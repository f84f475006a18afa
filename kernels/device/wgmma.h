// Matrix instructions of a warpgroup (sm_90a): d [64, N] += a [64, K] b [K, N] in f32, b in shared
// memory and a there or in registers, asynchronously.
//
//   wgmma_fence();  // registers are written; fence_proxy_async said so of shared memory
//   wgmma<Bf16, 128>(d, a_descriptor, b_descriptor, true);
//   wgmma_commit();
//   wgmma_wait<0>();  // d may be read, shared memory overwritten
//
// K is 32 bytes: 8 elements of tf32, 16 of 16 bits, 32 of fp8. Thread t = 32 w + 4 g + q of the
// warpgroup holds in d[i] row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 q + i % 2.
//
// A descriptor names a tile of 8-row atoms in shared memory as TMA writes it (PTX ISA, "Matrix
// Descriptor Format"): K-major, rows of 128 bytes swizzled by 128, atoms 1024 bytes apart. A step
// of K within the row adds its bytes to the address.
#pragma once

#include <type_traits>

#include "kernels/device/ptx.h"

namespace weft::ptx {

/// M- or N-major, 16-bit elements: rows of 128 bytes (64 elements) along M or N, one per k,
/// swizzled by 128 bytes. 8 rows are an atom; atoms of the next 8 k follow at 1024 bytes, those of
/// the next 64 elements of M or N at `column_bytes`.
__device__ __forceinline__ uint64_t wgmma_descriptor_mn_major(const void* start,
                                                              uint32_t column_bytes) {
  constexpr uint64_t kAtomBytes = 1024, kSwizzle128 = 1;
  return (static_cast<uint64_t>(shared_address(start)) >> 4 & 0x3fff) |
         static_cast<uint64_t>(column_bytes >> 4) << 16 | (kAtomBytes >> 4) << 32 |
         kSwizzle128 << 62;
}

/// K-major: rows of 128 bytes along K, swizzled by 128 bytes; `start` lies in a tile aligned to
/// 1024. The field of `column_bytes` is not read.
__device__ __forceinline__ uint64_t wgmma_descriptor_k_major(const void* start) {
  return wgmma_descriptor_mn_major(start, 16);
}

/// Of what lies `bytes` behind in shared memory. The address is in the low half, and no sum of
/// addresses leaves its 14 bits.
__device__ __forceinline__ uint64_t wgmma_descriptor_behind(uint64_t descriptor, uint32_t bytes) {
  return (descriptor >> 32 << 32) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

__device__ __forceinline__ void wgmma_fence(WEFT_SITE) {
  WEFT_PTX(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"), simt::wgmma_fence(site));
}
__device__ __forceinline__ void wgmma_commit(WEFT_SITE) {
  WEFT_PTX(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"), simt::wgmma_commit(site));
}
/// Until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait(WEFT_SITE) {
  WEFT_PTX(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending)
                        : "memory"),
           simt::wgmma_wait(kPending, site));
}

/// Element types of an operand. Tf32: f32 whose low 13 bits are ignored.
struct Tf32 {};
struct Bf16 {};
struct F16 {};
struct E4m3 {};
struct E5m2 {};

enum class Major : int { kK = 0, kMn = 1 };

template <class TypeA, class TypeB, int kN, Major kA = Major::kK, Major kB = Major::kK>
struct WgmmaInstruction;
template <class Type, int kN, Major kB>
struct WgmmaOfRegisters;

#ifdef __CUDACC__

#define WEFT_D8(i)                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define WEFT_D32(i) WEFT_D8(i), WEFT_D8(i + 8), WEFT_D8(i + 16), WEFT_D8(i + 24)
#define WEFT_D64(i) WEFT_D32(i), WEFT_D32(i + 32)
#define WEFT_D32_TEXT                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define WEFT_D40_TEXT WEFT_D32_TEXT ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WEFT_D48_TEXT WEFT_D40_TEXT ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WEFT_D64_TEXT \
  WEFT_D48_TEXT ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WEFT_D96_TEXT                                                                            \
  WEFT_D64_TEXT ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%" \
                "83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WEFT_D104_TEXT WEFT_D96_TEXT ",%96,%97,%98,%99,%100,%101,%102,%103"
#define WEFT_D128_TEXT                                                                           \
  WEFT_D104_TEXT ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%" \
                 "119,%120,%121,%122,%123,%124,%125,%126,%127"

// Operands after those of d: a, descriptors, accumulate, and which operands are transposed, which
// only instructions on 16-bit elements ask for.
#define WEFT_WGMMA_TEXT(n, k, type_a, type_b, text, a, b, accumulates, transposes)                 \
  "{\n .reg .pred accumulates;\n setp.ne.b32 accumulates, " accumulates                            \
  ", 0;\n wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type_a "." type_b " {" text "}, " a \
  ", " b ", accumulates, 1, 1" transposes ";\n}"
#define WEFT_WGMMA(TypeA, TypeB, n, text, ...)                                                \
  template <Major kA, Major kB>                                                               \
  struct WgmmaInstruction<TypeA, TypeB, n, kA, kB> {                                          \
    static __device__ __forceinline__ void run(float (&d)[n / 2], uint64_t a_descriptor,      \
                                               uint64_t b_descriptor, bool accumulate) {      \
      asm volatile(text:__VA_ARGS__                                                           \
                   : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(accumulate)), \
                     "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));                   \
    }                                                                                         \
  };
#define WEFT_WGMMA_REGISTERS(Type, n, text, ...)                                          \
  template <Major kB>                                                                     \
  struct WgmmaOfRegisters<Type, n, kB> {                                                  \
    static __device__ __forceinline__ void run(float (&d)[n / 2], const uint32_t (&a)[4], \
                                               uint64_t b_descriptor, bool accumulate) {  \
      asm volatile(text:__VA_ARGS__                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor),       \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kB)));       \
    }                                                                                     \
  };
// first to seventh: the numbers of the operands after those of d.
#define WEFT_WGMMA_N(Type, type, n, text, first, second, third, fourth, fifth, sixth, seventh, \
                     ...)                                                                      \
  WEFT_WGMMA(Type, Type, n,                                                                    \
             WEFT_WGMMA_TEXT(n, 16, type, type, text, "%" #first, "%" #second, "%" #third,     \
                             ", %" #fourth ", %" #fifth),                                      \
             __VA_ARGS__)                                                                      \
  WEFT_WGMMA_REGISTERS(Type, n,                                                                \
                       WEFT_WGMMA_TEXT(n, 16, type, type, text,                                \
                                       "{%" #first ",%" #second ",%" #third ",%" #fourth "}",  \
                                       "%" #fifth, "%" #sixth, ", %" #seventh),                \
                       __VA_ARGS__)
#define WEFT_WGMMA_16(Type, type)                                                               \
  WEFT_WGMMA_N(Type, type, 64, WEFT_D32_TEXT, 32, 33, 34, 35, 36, 37, 38, WEFT_D32(0))          \
  WEFT_WGMMA_N(Type, type, 80, WEFT_D40_TEXT, 40, 41, 42, 43, 44, 45, 46, WEFT_D32(0),          \
               WEFT_D8(32))                                                                     \
  WEFT_WGMMA_N(Type, type, 96, WEFT_D48_TEXT, 48, 49, 50, 51, 52, 53, 54, WEFT_D32(0),          \
               WEFT_D8(32), WEFT_D8(40))                                                        \
  WEFT_WGMMA_N(Type, type, 128, WEFT_D64_TEXT, 64, 65, 66, 67, 68, 69, 70, WEFT_D64(0))         \
  WEFT_WGMMA_N(Type, type, 192, WEFT_D96_TEXT, 96, 97, 98, 99, 100, 101, 102, WEFT_D64(0),      \
               WEFT_D32(64))                                                                    \
  WEFT_WGMMA_N(Type, type, 208, WEFT_D104_TEXT, 104, 105, 106, 107, 108, 109, 110, WEFT_D64(0), \
               WEFT_D32(64), WEFT_D8(96))                                                       \
  WEFT_WGMMA_N(Type, type, 256, WEFT_D128_TEXT, 128, 129, 130, 131, 132, 133, 134, WEFT_D64(0), \
               WEFT_D64(64))
// Of operands that are K-major alone.
#define WEFT_WGMMA_K_MAJOR(TypeA, type_a, TypeB, type_b, n, k, text, first, second, third, ...)    \
  WEFT_WGMMA(TypeA, TypeB, n,                                                                      \
             WEFT_WGMMA_TEXT(n, k, type_a, type_b, text, "%" #first, "%" #second, "%" #third, ""), \
             __VA_ARGS__)
#define WEFT_WGMMA_8(TypeA, type_a, TypeB, type_b)                                                 \
  WEFT_WGMMA_K_MAJOR(TypeA, type_a, TypeB, type_b, 64, 32, WEFT_D32_TEXT, 32, 33, 34, WEFT_D32(0)) \
  WEFT_WGMMA_K_MAJOR(TypeA, type_a, TypeB, type_b, 128, 32, WEFT_D64_TEXT, 64, 65, 66, WEFT_D64(0))
#define WEFT_WGMMA_TF32(n, text, first, second, third, ...) \
  WEFT_WGMMA_K_MAJOR(Tf32, "tf32", Tf32, "tf32", n, 8, text, first, second, third, __VA_ARGS__)
WEFT_WGMMA_TF32(64, WEFT_D32_TEXT, 32, 33, 34, WEFT_D32(0))
WEFT_WGMMA_TF32(128, WEFT_D64_TEXT, 64, 65, 66, WEFT_D64(0))
WEFT_WGMMA_TF32(192, WEFT_D96_TEXT, 96, 97, 98, WEFT_D64(0), WEFT_D32(64))
WEFT_WGMMA_TF32(256, WEFT_D128_TEXT, 128, 129, 130, WEFT_D64(0), WEFT_D64(64))
WEFT_WGMMA_16(Bf16, "bf16")
WEFT_WGMMA_16(F16, "f16")
WEFT_WGMMA_8(E4m3, "e4m3", E4m3, "e4m3")
WEFT_WGMMA_8(E4m3, "e4m3", E5m2, "e5m2")
WEFT_WGMMA_8(E5m2, "e5m2", E4m3, "e4m3")
WEFT_WGMMA_8(E5m2, "e5m2", E5m2, "e5m2")
#undef WEFT_WGMMA_TF32
#undef WEFT_WGMMA_8
#undef WEFT_WGMMA_K_MAJOR
#undef WEFT_WGMMA_16
#undef WEFT_WGMMA_N
#undef WEFT_WGMMA_REGISTERS
#undef WEFT_WGMMA
#undef WEFT_WGMMA_TEXT
#undef WEFT_D128_TEXT
#undef WEFT_D104_TEXT
#undef WEFT_D96_TEXT
#undef WEFT_D64_TEXT
#undef WEFT_D48_TEXT
#undef WEFT_D40_TEXT
#undef WEFT_D32_TEXT
#undef WEFT_D64
#undef WEFT_D32
#undef WEFT_D8

#else

template <class Type>
inline constexpr simt::MatrixType kMatrixType = simt::MatrixType::bf16;
template <>
inline constexpr simt::MatrixType kMatrixType<Tf32> = simt::MatrixType::tf32;
template <>
inline constexpr simt::MatrixType kMatrixType<F16> = simt::MatrixType::f16;
template <>
inline constexpr simt::MatrixType kMatrixType<E4m3> = simt::MatrixType::e4m3;
template <>
inline constexpr simt::MatrixType kMatrixType<E5m2> = simt::MatrixType::e5m2;

#endif

template <class TypeA, class TypeB, int kN, Major kA, Major kB>
__device__ __forceinline__ void issue_wgmma(float (&d)[kN / 2], uint64_t a_descriptor,
                                            uint64_t b_descriptor, bool accumulate WEFT_AND_SITE) {
#ifdef __CUDACC__
  WgmmaInstruction<TypeA, TypeB, kN, kA, kB>::run(d, a_descriptor, b_descriptor, accumulate);
#else
  simt::wgmma({.a_type = kMatrixType<TypeA>,
               .b_type = kMatrixType<TypeB>,
               .n = kN,
               .accumulate = accumulate,
               .a_mn_major = kA == Major::kMn,
               .b_mn_major = kB == Major::kMn},
              d, nullptr, a_descriptor, b_descriptor, site);
#endif
}

/// d = a b + (accumulate ? d : 0), of 16-bit elements, or of tf32, K-major.
template <class Type, int kN, Major kA = Major::kK, Major kB = Major::kK>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a_descriptor,
                                      uint64_t b_descriptor, bool accumulate WEFT_AND_SITE) {
  static_assert(!std::is_same_v<Type, Tf32> || (kA == Major::kK && kB == Major::kK));
  issue_wgmma<Type, Type, kN, kA, kB>(d, a_descriptor, b_descriptor, accumulate WEFT_PASS_SITE);
}

/// The same with 64 rows of a in registers: a[r] holds a pair of 16-bit elements of row 16 w + g +
/// 8 (r % 2), columns 2 q and 2 q + 1 + 8 (r / 2); they stay as they are until wgmma_wait. So an
/// accumulator's eight floats from 8 k on, rounded in pairs, are those of columns 16 k to 16 k
/// + 15.
template <class Type, int kN, Major kB>
__device__ __forceinline__ void wgmma_of_registers(float (&d)[kN / 2], const uint32_t (&a)[4],
                                                   uint64_t b_descriptor,
                                                   bool accumulate WEFT_AND_SITE) {
#ifdef __CUDACC__
  WgmmaOfRegisters<Type, kN, kB>::run(d, a, b_descriptor, accumulate);
#else
  simt::wgmma({.a_type = kMatrixType<Type>,
               .b_type = kMatrixType<Type>,
               .n = kN,
               .accumulate = accumulate,
               .b_mn_major = kB == Major::kMn},
              d, a, 0, b_descriptor, site);
#endif
}

/// The same of fp8, each operand in a format of its own and K-major. The tensor core keeps 13 bits
/// of such a sum (numerics/tensor_core.h).
template <class TypeA, class TypeB, int kN>
__device__ __forceinline__ void wgmma_fp8(float (&d)[kN / 2], uint64_t a_descriptor,
                                          uint64_t b_descriptor, bool accumulate WEFT_AND_SITE) {
  issue_wgmma<TypeA, TypeB, kN, Major::kK, Major::kK>(d, a_descriptor, b_descriptor,
                                                      accumulate WEFT_PASS_SITE);
}

}  // namespace weft::ptx
