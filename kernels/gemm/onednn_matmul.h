// oneDNN's matmul on plain memory, through a cache of primitives.
//
// A primitive belongs to a thread count: oneDNN divides the work when it is created, and one that
// meets fewer threads when it runs would leave parts of C untouched.
//
// oneDNN 2.6.3 sums each element's products in an order that depends on the description and not on
// the threads, with two exceptions. With more than one thread, a transposed A, one matrix and
// K >= 2048 it may split K among threads: the caller avoids that. And on tiles (AMX) it cuts K by
// the number of threads: there onednn_matmul cuts the rows itself, and each block is one thread's.
#pragma once

#include <compare>

#include "core/dtype.h"

namespace weft::kernels {

/// C = A B + bias (+ C when sum), for `batch` products that lie one after another. A is [M, K]
/// row-major, or [K, M] when transposed; B is [K, N] or [N, K]; C is [M, N]; all without gaps.
struct MatmulKey {
  DType input = DType::f32;   // of A and B: f32, or bf16 where onednn_has_bf16()
  DType output = DType::f32;  // f32, or bf16 for bf16 inputs
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool a_repeated = false, b_repeated = false;  // one A or B for the whole batch
  bool bias = false;                            // f32 [N]
  bool sum = false;
  /// B is brought into oneDNN's own blocked layout first. That pays from some hundred rows on.
  bool reorders_b = false;
  /// Several threads may work on it, `threads` of them; the bits are the same for any number.
  bool is_shared = false;
  int threads = 1;

  friend auto operator<=>(const MatmulKey&, const MatmulKey&) = default;
};

/// Threads that a matmul called from here may use: 1 inside a parallel region.
int matmul_threads();
/// Whether the CPU multiplies bf16. Where oneDNN would emulate that, as on AVX-512 without its bf16
/// instructions, products of widened operands take less than half of the time.
bool onednn_has_bf16();
/// What oneDNN multiplies where operands are of that dtype, wide where it has no products of it.
DType onednn_input(DType dtype);
/// Whether the matmul gives the same bits for any key.threads, as oneDNN's "brgemm" driver does.
/// The older drivers, which serve CPUs without AVX-512, split K among threads: cut the problem
/// yourself and use threads = 1 there.
bool onednn_keeps_bits(const MatmulKey& key);

/// Bytes that such a product takes besides its operands and its result, in the calling thread:
/// oneDNN's scratchpad, and what is brought into another layout.
int64_t onednn_matmul_scratch(const MatmulKey& key);

/// Safe to call from several threads at once.
void onednn_matmul(const MatmulKey& key, const void* a, const void* b, void* c,
                   const float* bias = nullptr);

}  // namespace weft::kernels
