// Matrix instructions of a warp (sm_80; fp8 from sm_89, stmatrix from sm_90).
//
//   d [16, 8] += a [16, K] b [K, 8], f32 sums; lane = 4 g + q holds
//   d[i]: row g + 8 (i / 2), column 2 q + i % 2
//   a: register r of 16-bit elements holds row g + 8 (r % 2), columns 2 q + {0, 1} + 8 (r / 2)
//   b: register r holds rows 2 q + {0, 1} + 8 r, column g
// (PTX ISA, "Matrix Fragments for mma"; other types in kernels/simt/matrix_unit.h.)
#pragma once

#include "core/float_formats.h"
#include "kernels/device/ptx.h"

namespace weft::ptx {

#define WEFT_MMA(name, k, type, ptx_type, a_registers, b_registers, a_text, b_text, ...)     \
  __device__ __forceinline__ void name(float(&d)[4], const uint32_t(&a)[a_registers],        \
                                       const uint32_t(&b)[b_registers] WEFT_AND_SITE) {      \
    WEFT_PTX(asm volatile("mma.sync.aligned.m16n8k" #k ".row.col.f32." ptx_type "." ptx_type \
                          ".f32 {%0,%1,%2,%3}, " a_text ", " b_text ", {%0,%1,%2,%3};"       \
                          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                   \
                          : __VA_ARGS__),                                                    \
             simt::mma_sync(simt::MatrixType::type, k, d, a, b, site));                      \
  }
#define WEFT_MMA_4_2(name, k, type, ptx_type)                                               \
  WEFT_MMA(name, k, type, ptx_type, 4, 2, "{%4,%5,%6,%7}", "{%8,%9}", "r"(a[0]), "r"(a[1]), \
           "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define WEFT_MMA_2_1(name, k, type, ptx_type) \
  WEFT_MMA(name, k, type, ptx_type, 2, 1, "{%4,%5}", "{%6}", "r"(a[0]), "r"(a[1]), "r"(b[0]))

WEFT_MMA_4_2(mma_m16n8k16_bf16, 16, bf16, "bf16")
WEFT_MMA_4_2(mma_m16n8k16_f16, 16, f16, "f16")
WEFT_MMA_2_1(mma_m16n8k8_bf16, 8, bf16, "bf16")
WEFT_MMA_2_1(mma_m16n8k8_f16, 8, f16, "f16")
/// The operands' low 13 bits are ignored: cvt_rna_tf32 rounds them away.
WEFT_MMA_4_2(mma_m16n8k8_tf32, 8, tf32, "tf32")
WEFT_MMA_2_1(mma_m16n8k4_tf32, 4, tf32, "tf32")
WEFT_MMA_4_2(mma_m16n8k32_e4m3, 32, e4m3, "e4m3")
WEFT_MMA_4_2(mma_m16n8k32_e5m2, 32, e5m2, "e5m2")
#undef WEFT_MMA_2_1
#undef WEFT_MMA_4_2
#undef WEFT_MMA

// Four 8x8 matrices of 16-bit elements between shared memory and registers: lanes 8j..8j+7 give the
// rows of matrix j, 16 bytes each; register j of lane 4 g + q holds row g, columns 2 q and 2 q + 1
// of matrix j, or row and column exchanged (trans).

#define WEFT_LDMATRIX(name, count, transposed, form, registers, address, ...)                     \
  __device__ __forceinline__ void name(uint32_t(&r)[count], const void* row WEFT_AND_SITE) {      \
    WEFT_PTX(                                                                                     \
        asm volatile("ldmatrix.sync.aligned.m8n8." form ".shared.b16 " registers ", " address ";" \
                     : __VA_ARGS__                                                                \
                     : "r"(shared_address(row))                                                   \
                     : "memory"),                                                                 \
        simt::ldmatrix(count, transposed, r, row, site));                                         \
  }
#define WEFT_LDMATRIX_X4(name, transposed, form)                                            \
  WEFT_LDMATRIX(name, 4, transposed, form, "{%0,%1,%2,%3}", "[%4]", "=r"(r[0]), "=r"(r[1]), \
                "=r"(r[2]), "=r"(r[3]))
#define WEFT_LDMATRIX_X2(name, transposed, form) \
  WEFT_LDMATRIX(name, 2, transposed, form, "{%0,%1}", "[%2]", "=r"(r[0]), "=r"(r[1]))

WEFT_LDMATRIX_X4(ldmatrix_x4, false, "x4")
WEFT_LDMATRIX_X4(ldmatrix_x4_trans, true, "x4.trans")
WEFT_LDMATRIX_X2(ldmatrix_x2, false, "x2")
WEFT_LDMATRIX_X2(ldmatrix_x2_trans, true, "x2.trans")
#undef WEFT_LDMATRIX_X2
#undef WEFT_LDMATRIX_X4
#undef WEFT_LDMATRIX

__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&r)[4] WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                            shared_address(row)),
                        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                        : "memory"),
           simt::stmatrix(4, false, r, row, site));
}

/// A float rounded to tf32: to nearest, ties away from zero.
__device__ __forceinline__ uint32_t cvt_rna_tf32(float x) {
#ifdef __CUDACC__
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  const uint32_t bits = __float_as_uint(x);
  const bool is_special = (bits & 0x7f800000u) == 0x7f800000u;
  return (is_special ? bits : bits + 0x1000u) & 0xffffe000u;
#endif
}

// Two floats rounded to 16-bit elements, to nearest even: `low` in the low half.
#ifdef __CUDACC__
#define WEFT_CVT_PAIR(name, type, element)                                       \
  __device__ __forceinline__ uint32_t name(float low, float high) {              \
    uint32_t bits;                                                               \
    asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low)); \
    return bits;                                                                 \
  }
#else
#define WEFT_CVT_PAIR(name, type, element)                                                \
  inline uint32_t name(float low, float high) {                                           \
    return static_cast<uint32_t>(element(low).bits) | uint32_t{element(high).bits} << 16; \
  }
#endif
WEFT_CVT_PAIR(cvt_rn_bf16x2, "bf16", bf16)
WEFT_CVT_PAIR(cvt_rn_f16x2, "f16", f16)
#undef WEFT_CVT_PAIR

}  // namespace weft::ptx
