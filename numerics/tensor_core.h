// The accumulation of NVIDIA's tensor cores, bit for bit.
//
//   D = A B + C;  A [M, K] and B [K, N] in f16, bf16, tf32 or fp8, C and D [M, N] in f32 or f16.
//
// The hardware sums K in fused steps of p products. One step on c and products a_k b_k:
//   1. products are exact and not normalised: significand in [1, 4), exponent e_a + e_b; subnormals
//      are kept, with the format's smallest exponent and a significand below 1;
//   2. e is the largest exponent of the nonzero terms, c among them, and at least a floor;
//   3. each term's magnitude is truncated toward zero to F fractional bits at exponent e;
//   4. the truncated terms are added exactly;
//   5. the sum is normalised and rounded once: toward zero to f32, to nearest even to f16.
// The result is the next step's c. What differs between GPUs:
//
//   GPU         F   p f16, bf16   p tf32   fp8
//   v100        23  4 (f16)       -        -
//   a100 a2     24  8             4        -
//   ada l40s    24  8             4        p = 16, F = 13, f32 results hold 13 bits
//   h100 h200   25  16            8        f32 (wgmma): p = 32, F = 13, results hold 13 bits;
//                                          f16 (mma): as b200
//   b200        25  16            8        32 products, split by (k / 2) mod 2 into two steps of 16
//                                          that start at 0 and chain; c is added to their result,
//                                          rounded to nearest even
//
// The floors of e are those of Khattak and Mikaitis' models. A NaN result has all mantissa bits set
// and no sign: 0x7FFFFFFF or, in f16, 0x7FFF. A sum that is exactly zero is +0.
//
// Sources: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ
// Computer Science 7:e330, 2021; Khattak, Mikaitis, "Accurate models of NVIDIA tensor cores",
// arXiv 2512.07004, whose published vectors these models reproduce (tensor_core_test); Xie et al.,
// "MMA-Sim", arXiv 2511.10909.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace weft::numerics {

/// One fused step.
struct FusedStep {
  int terms;               // p, products beside c
  int fraction_bits;       // F
  int output_bits;         // mantissa bits that a result keeps
  bool to_nearest;         // rounding of a result: to nearest even, else toward zero
  int alignment_floor;     // the least e
  int output_exponent;     // the output format's smallest normal exponent
  double output_overflow;  // results of at least this magnitude, after rounding, are infinite

  friend bool operator==(const FusedStep&, const FusedStep&) = default;
};

/// How K is cut into steps.
struct TensorCoreModel {
  std::string_view gpu;  // v100 a100 ada h100 b200
  DType input;           // f16 bf16 tf32 f8e4m3 f8e5m2
  DType output;          // f32 f16
  FusedStep step;
  /// 0: every step takes the last one's result as c. Otherwise so many products are summed from 0,
  /// those with even k / 2 first, and their sum is added to c, rounded to nearest even.
  int split_block = 0;
};

/// The models' names and aliases: v100 a2 a100 ada l40s h100 h200 b200.
std::span<const std::string_view> tensor_core_gpus();

/// Whether the tensor cores of a GPU take such operands; throws Error for an unknown GPU.
bool tensor_core_takes(std::string_view gpu, DType input);

/// The model of a GPU by name; throws Error for an unknown GPU or a format that it lacks.
TensorCoreModel tensor_core_model(std::string_view gpu, DType input, DType output = DType::f32);

/// c + sum a[i] b[i] in one fused step; at most step.terms products. a and b hold values of
/// model.input (tf32 loses what is below its 10 mantissa bits, as in the hardware), c and the
/// result of model.output.
float tensor_core_step(const TensorCoreModel& model, std::span<const float> a,
                       std::span<const float> b, float c);

/// c + sum a[i] b[i] in as many steps as the hardware takes, in ascending i.
float tensor_core_dot(const TensorCoreModel& model, std::span<const float> a,
                      std::span<const float> b, float c);

/// A matrix of any floating dtype but f64, read in place; strides in elements, any sign.
struct TensorCoreOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row_stride = 0, column_stride = 0;
};

/// d = a b + c. d [m, n] in f32, in values of model.output. c.data null: zeros; d may be c. a and b
/// are rounded to model.input on the way (to nearest even; to tf32 by truncation), c to
/// model.output.
struct TensorCoreGemm {
  int64_t m = 0, n = 0, k = 0;
  TensorCoreOperand a, b, c;
  float* d = nullptr;
  int64_t d_row_stride = 0, d_column_stride = 1;
  /// Not 0: the products of so many k, a multiple of the model's step, are summed from zero, and
  /// that sum is added to an f32 (f16) accumulator on the general cores, rounded to nearest even.
  int64_t promotion_interval = 0;
};

/// Equal to tensor_core_dot for every element, on all threads and vectorised over columns.
void tensor_core_gemm(const TensorCoreModel& model, const TensorCoreGemm& gemm);

}  // namespace weft::numerics
