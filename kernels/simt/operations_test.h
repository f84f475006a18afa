// Matrix products by tensor-core instructions, for operations_test.cc. Row-major; all device
// memory.
#pragma once

#include <cstdint>

namespace weft::kernels {

/// c [16, 8] = a [16, K] b [8, K]^T by one mma.sync; elements as bits.
void run_mma_bf16(const uint16_t* a, const uint16_t* b, float* c);
void run_mma_f16_k8(const uint16_t* a, const uint16_t* b, float* c);
void run_mma_tf32(const float* a, const float* b, float* c);
void run_mma_e4m3(const uint8_t* a, const uint8_t* b, float* c);
/// The same with a and b through shared memory, ldmatrix and its transposing form; b [K, 8].
void run_ldmatrix(const uint16_t* a, const uint16_t* b, float* c);
/// c [64, n] = a b by wgmma over two k steps, operands through TMA. a_mn: a is [32, 64], else
/// [64, 32]; b_mn: b is [32, n], else [n, 32]. n: 64, 128 or 256.
void run_wgmma(const uint16_t* a, const uint16_t* b, float* c, int n, bool a_mn, bool b_mn);
/// c [64, n] = a [64, 32] b [32, n] by wgmma over two k steps, a from registers; n is 64 or 80.
void run_wgmma_of_registers(const uint16_t* a, const uint16_t* b, float* c, int n);
/// c [64, n] = a [64, 64] b [n, 64]^T by wgmma over two k steps of fp8 operands, e4m3 or e5m2 each.
/// n: 64 or 128.
void run_wgmma_fp8(const uint8_t* a, bool a_is_e4m3, const uint8_t* b, bool b_is_e4m3, float* c,
                   int n);
/// c [64, n] = a [64, 16] b [n, 16]^T by wgmma over two k steps of tf32. n: 64 or 128.
void run_wgmma_tf32(const float* a, const float* b, float* c, int n);
/// y = x [rows, 64] of floats, box by box of [8, 16] from (-3, -5) on; outside zeros.
void run_tma_copy(const float* x, float* y, int rows, int swizzle);
/// y[i] = x[i % 4] for 64 threads, of which one copies x by cp.async and all wait on an mbarrier.
void run_late_arrival(const float* x, float* y);
/// A column of a [32][pitch] array in shared memory.
void run_columns(float* y, int pitch);

}  // namespace weft::kernels
