// Shapes, layouts, dtypes and numerics that gemm is tested on.
#pragma once

#include <array>

#include "kernels/gemm/gemm_case.h"

namespace weft::kernels {

inline constexpr Epilogue kEpilogues[] = {Epilogue::kNone, Epilogue::kGelu, Epilogue::kDgelu};

/// Every layout of the operands, on integers that add up exactly.
inline void add_layouts(GemmCases& cases) {
  for (char a : {'N', 'T', 'S'}) {
    for (char b : {'N', 'T', 'S'}) {
      GemmCase c{.a_layout = a, .b_layout = b, .bias = true, .integers = true};
      cases.add({}, 33, 17, 63, c);
      c.accumulate = true;
      cases.add({2, 3}, 15, 16, 33, c);
    }
  }
}

/// Odd sizes, each as every dimension, and sums long enough for libraries to split K.
inline void add_sizes(GemmCases& cases) {
  for (int64_t size : {0, 1, 15, 16, 17, 33, 97}) {
    cases.add({}, size, 33, 17, {.b_layout = 'T'});
    cases.add({}, 17, size, 33, {.a_layout = 'T'});
    cases.add({}, 33, 17, size, {.bias = true});
  }
  cases.add({}, 9, 8, 0, {.accumulate = true});
  for (int64_t k : {1000, 1024, 2048, 2113, 4160}) {
    cases.add({}, 48, 17, k, {.a_layout = 'T', .emulated_on = k == 1000 ? "" : "cpu"});
  }
  cases.add({}, 17, 33, 4160, {.emulated_on = "cpu"});
  cases.add({}, 1, 17, 4160, {.accumulate = true, .emulated_on = "mma"});
  cases.add({}, 17, 1, 4160, {.a_layout = 'T', .emulated_on = "mma"});
  cases.add({}, 16, 8, 12608, {.a_layout = 'T', .accumulate = true, .emulated_on = "mma"});
}

/// Batches: repeated operands, groups in one call, C that is not dense.
inline void add_batches(GemmCases& cases) {
  for (char a : {'N', 'R'}) {
    for (char b : {'N', 'R', 'T'}) {
      cases.add({3, 2}, 17, 33, 16, {.a_layout = a, .b_layout = b});
    }
  }
  cases.add({40}, 65, 65, 32, {.b_layout = 'T', .emulated_on = "cpu"});
  for (char c : {'S', 'W'}) {
    for (Epilogue epilogue : kEpilogues) {
      cases.add({}, 33, 40, 65, {.bias = true, .epilogue = epilogue, .c_layout = c});
      cases.add({4}, 33, 40, 65,
                {.b_layout = 'R', .bias = true, .epilogue = epilogue, .c_layout = c});
    }
    cases.add({}, 33, 40, 65, {.bias = true, .accumulate = true, .c_layout = c});
    cases.add({}, 33, 40, 2065,
              {.a_layout = 'T', .accumulate = true, .c_layout = c, .emulated_on = "mma"});
  }
}

/// What a linear layer adds or sums on its way out: one matrix, a batch, gaps in C, no rows.
inline void add_linear_layers(GemmCases& cases) {
  const GemmCase dgelu{.epilogue = Epilogue::kDgelu, .bias_gradient = true};
  for (char c_layout : {'N', 'S', 'W'}) {
    cases.add({}, 33, 40, 65, {.bias = true, .c_layout = c_layout, .residual = true});
    GemmCase c = dgelu;
    c.c_layout = c_layout;
    cases.add({3}, 33, 40, 64, c);
  }
  cases.add({2}, 17, 24, 0, {.bias = true, .residual = true});
  cases.add({}, 0, 33, 17, dgelu);
  GemmCase split = dgelu;
  split.emulated_on = "mma";
  cases.add({}, 49, 40, 584, split);
  for (Epilogue epilogue : kEpilogues) {
    cases.add({2}, 197, 96, 48,
              {.b_layout = 'R', .bias = true, .epilogue = epilogue, .emulated_on = "mma"});
  }
}

/// Numerics that a caller asks for.
inline void add_numerics(GemmCases& cases) {
  const auto add = [&](DType in, DType out, MatmulNumerics numerics) {
    cases.types = {in, in, out};
    cases.numerics = numerics;
    for (char a : {'N', 'T', 'S'}) {
      cases.add({2}, 5, 19, 37, {.a_layout = a, .b_layout = 'T', .bias = true});
      cases.add({}, 3, 16, 260, {.a_layout = a, .accumulate = true});
    }
    cases.add({}, 33, 17, 63, {.bias = true, .integers = true});
    cases.add({3}, 4, 7, 9,
              {.b_layout = 'R', .bias = true, .epilogue = Epilogue::kGelu, .c_layout = 'W'});
    cases.add({}, 6, 7, 40, {.epilogue = Epilogue::kDgelu});
    cases.add({}, 6, 7, 40, {.bias = true, .residual = true});
    cases.add({}, 6, 7, 40, {.epilogue = Epilogue::kDgelu, .bias_gradient = true});
    cases.add({}, 1, 1, 1);
    cases.add({}, 4, 5, 0, {.bias = true});
    cases.numerics = {};
  };
  const Accumulation ieee = Accumulation::kIeee, exact = Accumulation::kExact;
  add(DType::f32, DType::f32, {ieee, Tf32::kTruncate});
  add(DType::f32, DType::f32, {ieee, Tf32::kNearest});
  add(DType::f32, DType::f32, {exact});
  add(DType::f32, DType::f32, {exact, Tf32::kTruncate});
  for (DType in : {DType::f16, DType::bf16}) {
    add(in, in, {exact});
    add(in, DType::f32, {exact});
  }
  add(DType::f16, DType::f16, {Accumulation::kV100});
  for (Accumulation gpu :
       {Accumulation::kA100, Accumulation::kAda, Accumulation::kH100, Accumulation::kB200}) {
    add(DType::f16, DType::f32, {gpu});
    add(DType::bf16, DType::bf16, {gpu});
    add(DType::f32, DType::f32, {gpu, Tf32::kTruncate});
  }
  add(DType::f32, DType::f32, {Accumulation::kH100, Tf32::kNearest});
}

/// TF32 on tensor cores: several tiles, tails in each dimension, K beyond twice the depth of a
/// pipeline of 4 stages of 16, lines that 16-byte copies do not fit, K split.
inline void add_tf32(GemmCases& cases) {
  cases.types = {};
  for (Tf32 rounding : {Tf32::kTruncate, Tf32::kNearest}) {
    cases.numerics = {Accumulation::kIeee, rounding};
    for (char a : {'N', 'T'}) {
      for (char b : {'N', 'T'}) cases.add({2}, 72, 132, 148, {.a_layout = a, .b_layout = b});
    }
    cases.add({}, 67, 65, 133, {.b_layout = 'T', .integers = true});
    cases.add({}, 36, 20, 600, {.a_layout = 'T', .accumulate = true});
  }
  // On wgmma: tiles and tails, K that wraps its ring of 4 stages of 32, split; every end of a
  // product; operands that it pays to copy along K, or into lines that TMA can address.
  cases.numerics.tf32 = Tf32::kTruncate;
  GemmCase c{.b_layout = 'T', .bias = true, .emulated_on = "mma"};
  cases.add({}, 136, 200, 72, c);
  for (Epilogue epilogue : {Epilogue::kGelu, Epilogue::kDgelu}) {
    c.epilogue = epilogue;
    c.bias_gradient = epilogue == Epilogue::kDgelu;
    cases.add({}, 72, 132, 40, c);
  }
  c = {.b_layout = 'T', .bias = true, .integers = true, .emulated_on = "mma"};
  cases.add({}, 264, 200, 120, c);
  cases.add({}, 72, 136, 584, c);
  cases.add({}, 1288, 24, 40, {.bias = true, .integers = true, .emulated_on = "mma"});
  cases.add({2}, 1288, 24, 41, {.b_layout = 'R', .emulated_on = "mma"});
  cases.add({}, 24, 1288, 40, {.a_layout = 'T', .b_layout = 'T', .emulated_on = "mma"});
  cases.numerics = {};
}

/// fp8, of both formats, with a scale, beyond one interval of promotion.
inline void add_fp8(GemmCases& cases) {
  const DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;
  for (Accumulation accumulation : {Accumulation::kIeee, Accumulation::kExact, Accumulation::kAda,
                                    Accumulation::kH100, Accumulation::kB200}) {
    cases.numerics = {accumulation};
    for (auto [a, b] : {std::pair(e4m3, e4m3), {e5m2, e4m3}, {e4m3, e5m2}}) {
      for (DType out : {DType::f32, DType::bf16}) {
        cases.types = {a, b, out};
        for (int64_t k : {0, 1, 127, 128, 129, 400}) {
          cases.add({}, 5, 19, k,
                    {.a_layout = k == 129 ? 'T' : 'N',
                     .b_layout = k == 127 ? 'T' : 'N',
                     .bias = k > 1,
                     .accumulate = k == 400,
                     .scale = 0.3});
        }
      }
    }
  }
  cases.numerics = {};
}

/// fp8 on tensor cores: every pair of formats, every layout, several tiles in each dimension, tails
/// in each, lines that TMA takes and lines that are copied, and K that wraps a ring of 4 stages of
/// 128 twice, split or, where a model's bits are asked for, whole.
inline void add_fp8_tensor_cores(GemmCases& cases) {
  const DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;
  const auto add_modelled = [&](DType dtype, int64_t m, int64_t n, int64_t k, const char* on) {
    cases.types = {dtype, dtype, DType::f32};
    cases.numerics = {Accumulation::kH100};
    cases.add({}, m, n, k, {.b_layout = 'T', .emulated_on = on});
    cases.numerics = {};
  };
  for (DType a : {e4m3, e5m2}) {
    for (DType b : {e4m3, e5m2}) {
      cases.types = {a, b, DType::bf16};
      cases.add({}, 136, 264, 144,
                {.b_layout = 'T', .bias = true, .integers = true, .emulated_on = "fp8"});
      cases.types.c = DType::f16;
      cases.add({}, 40, 72, 80, {.b_layout = 'T', .scale = 0.3});
    }
    add_modelled(a, 33, 40, 300, "");
  }
  add_modelled(e4m3, 17, 24, 1160, "fp8");
  for (char a : {'N', 'T'}) {
    for (char b : {'N', 'T'}) {
      GemmCase c{.a_layout = a, .b_layout = b, .emulated_on = "fp8"};
      cases.types = {e5m2, e4m3, DType::bf16};
      cases.add({3}, 40, 72, 88, c);
      c.bias = c.integers = true;
      cases.types = {e4m3, e4m3, DType::bf16};
      cases.add({}, 72, 136, 1160, c);
    }
  }
  for (Epilogue epilogue : kEpilogues) {
    cases.types = {epilogue == Epilogue::kDgelu ? e5m2 : e4m3, e4m3, DType::bf16};
    for (char c : {'N', 'S', 'W'}) {
      cases.add({2}, 33, 40, 48,
                {.b_layout = 'R',
                 .bias = true,
                 .epilogue = epilogue,
                 .c_layout = c,
                 .scale = 0.5,
                 .residual = epilogue == Epilogue::kNone,
                 .bias_gradient = epilogue == Epilogue::kDgelu,
                 .emulated_on = c == 'N' ? "" : "fp8"});
    }
  }
  cases.types = {e5m2, e4m3, DType::bf16};
  cases.add({}, 40, 72, 584,
            {.epilogue = Epilogue::kDgelu, .bias_gradient = true, .emulated_on = "fp8"});
  cases.types.c = DType::f32;
  cases.add({}, 72, 40, 600, {.a_layout = 'T', .accumulate = true, .emulated_on = "fp8"});
}

/// What 16-bit tensor cores take: every layout, several tiles in each dimension, tails in each, K
/// beyond twice the depth of a pipeline of 4 stages of 64 and short of one step, K split; rows that
/// are multiples of 16 bytes, of 4, and of 2, as a row of attention's 197 scores is.
inline void add_tensor_cores(GemmCases& cases) {
  for (char a : {'N', 'T'}) {
    for (char b : {'N', 'T'}) {
      GemmCase c{.a_layout = a, .b_layout = b};
      cases.add({3}, 40, 72, 88, c);
      c.bias = c.integers = true;
      cases.add({}, 136, 264, 8, c);
      // The rungs without tensor cores: several of their tiles and steps once.
      const bool is_for_all =
          a == 'N' && b == 'T' && cases.types.a == DType::bf16 && cases.types.c == DType::bf16;
      c.emulated_on = is_for_all ? "" : "mma";
      cases.add({}, 264, 200, 120, c);
      cases.add({}, 72, 136, 584, c);
      for (int64_t k : {197, 198}) {
        cases.add({2}, 70, 41, k, {.a_layout = a, .b_layout = b, .emulated_on = "mma"});
      }
    }
  }
  // In wgmma's ping-pong: tiles in turns, of more steps than there are stages; in pairs, and alone.
  if (itemsize(cases.types.c) == 2) {
    const GemmCase c{
        .b_layout = 'T', .bias = true, .integers = true, .emulated_on = "gemm_cuda_wgmma"};
    cases.add({}, 264, 200, 264, c);
    cases.add({}, 72, 776, 264, c);
  }
  for (Epilogue epilogue : kEpilogues) {
    cases.add({}, 136, 200, 72,
              {.b_layout = 'T',
               .bias = true,
               .epilogue = epilogue,
               .bias_gradient = epilogue == Epilogue::kDgelu,
               .emulated_on = "mma"});
  }
  cases.add({}, 136, 72, 40, {.b_layout = 'T', .residual = true});
  // A bias gradient under split K.
  cases.add({}, 40, 72, 584,
            {.epilogue = Epilogue::kDgelu, .bias_gradient = true, .emulated_on = "mma"});
  cases.add({}, 200, 72, 616, {.a_layout = 'T', .accumulate = true, .emulated_on = "mma"});
  cases.add({4}, 72, 40, 64, {.b_layout = 'R'});
  cases.add({}, 72, 40, 64, {.c_layout = 'W'});
}

inline void add_gemm_test_cases(GemmCases& cases) {
  const std::array<GemmTypes, 6> kTypes = {{{DType::f64, DType::f64, DType::f64},
                                            {DType::f32, DType::f32, DType::f32},
                                            {DType::f16, DType::f16, DType::f16},
                                            {DType::f16, DType::f16, DType::f32},
                                            {DType::bf16, DType::bf16, DType::bf16},
                                            {DType::bf16, DType::bf16, DType::f32}}};
  for (const GemmTypes& types : kTypes) {
    cases.types = types;
    add_layouts(cases);
    add_sizes(cases);
    add_batches(cases);
    add_linear_layers(cases);
    if (itemsize(types.a) == 2) add_tensor_cores(cases);
  }
  add_numerics(cases);
  add_tf32(cases);
  add_fp8(cases);
  add_fp8_tensor_cores(cases);
}

}  // namespace weft::kernels
