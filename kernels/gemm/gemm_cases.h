// Shapes, layouts and dtypes that gemm is tested and timed on.
#pragma once

#include <charconv>
#include <cmath>

#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// What a case varies; everything else follows.
struct GemmCase {
  Shape batch;
  int64_t m, n, k;
  DType dtype = DType::f32;
  DType output = DType::f32;
  char a_layout = 'N', b_layout = 'N';  // N, T: transposed, S: strided, R: repeated over the batch
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
  bool integers = false;
  char c_layout = 'N';  // N, S: strided, W: columns of a wider buffer
  MatmulNumerics numerics = {};
  DType b_dtype = dtype;  // fp8 operands may differ
  double scale = 1;
  bool residual = false;
  bool bias_gradient = false;
  const char* emulated_on = "";  // kernels/testing/op_table.h

  std::string name() const {
    const char* const epilogues[] = {"", "_gelu", "_dgelu"};
    return fmt::format(
        "{}{}x{}x{}_{}{}_{}_{}{}{}{}{}{}{}{}{}{}{}", batch.empty() ? "" : to_string(batch), m, n, k,
        weft::name(dtype), b_dtype == dtype ? "" : weft::name(b_dtype), weft::name(output),
        a_layout, b_layout, c_layout, bias ? "_bias" : "", epilogues[static_cast<int>(epilogue)],
        accumulate ? "_accumulate" : "", residual ? "_residual" : "",
        bias_gradient ? "_bias_gradient" : "", integers ? "_integers" : "",
        numerics == MatmulNumerics{} ? ""
                                     : fmt::format("_{}", kernels::name(numerics.accumulation)),
        numerics.tf32 == Tf32::off        ? ""
        : numerics.tf32 == Tf32::truncate ? "_tf32"
                                          : "_tf32_nearest");
  }

  Tensor operand(Inputs& in, int64_t rows, int64_t cols, char layout, DType dtype) const {
    Shape shape = layout == 'R' ? Shape::filled(batch.size(), 1) : batch;
    shape.push_back(layout == 'T' ? cols : rows);
    shape.push_back(layout == 'T' ? rows : cols);
    // Entries of size K^(-1/4) each keep the argument of a GELU near 1.
    const double scale = std::pow(std::max<double>(1, static_cast<double>(k)), -0.25);
    Tensor t =
        integers ? in.integers(shape, dtype) : in.uniform(shape, dtype, -2 * scale, 2 * scale);
    if (layout == 'T') return view::transpose(t, -1, -2);
    if (layout == 'S') return in.strided(t);
    Shape expanded = batch;
    expanded.push_back(rows);
    expanded.push_back(cols);
    return layout == 'R' ? view::expand(t, expanded) : t;
  }

  GemmProblem make(Inputs& in) const {
    Shape shape = batch;
    shape.push_back(m);
    shape.push_back(n);
    const auto values = [&] {
      return integers ? in.integers(shape, output) : in.uniform(shape, output, -2, 2);
    };
    GemmProblem p{.a = operand(in, m, k, a_layout, dtype),
                  .b = operand(in, k, n, b_layout, b_dtype),
                  .scale = scale,
                  .numerics = numerics};
    const Tensor old = accumulate ? values() : Tensor();
    p.c = c_layout == 'S'   ? in.strided_output(shape, output)
          : c_layout == 'W' ? in.row_strided_output(shape, output)
                            : in.output(shape, output);
    if (accumulate) {
      visit_dtype(output, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T* next = old.data<T>();
        for_each_offset(shape, p.c.strides(), [&](int64_t i) { p.c.data<T>()[i] = *next++; });
      });
    }
    if (bias)
      p.bias = integers ? in.integers({n}, DType::f32)
                        : in.uniform({n}, itemsize(dtype) == 1 ? output : dtype, -1, 1);
    p.epilogue = epilogue;
    p.accumulate = accumulate;
    if (epilogue == Epilogue::gelu) p.aux = in.output(shape, output);
    if (residual) p.residual = c_layout == 'S' ? in.strided(values()) : values();
    if (bias_gradient) {
      p.bias_gradient = in.output({n}, dtype == DType::f64 ? DType::f64 : DType::f32);
    }
    if (epilogue == Epilogue::dgelu) p.aux = in.uniform(shape, output, -6, 6);
    return p;
  }
};

/// When a case is run.
enum class Timing { none, timed, large };

inline Case<GemmProblem> gemm_case(const GemmCase& c, Timing timing) {
  const double products =
      static_cast<double>(numel(c.batch)) * static_cast<double>(c.m * c.n * c.k);
  // Each operand once; under a GELU also its argument, and an old C.
  const int64_t outputs = 1 + (c.epilogue != Epilogue::none) + c.accumulate + c.residual;
  const double bytes = static_cast<double>(numel(c.batch)) *
                       static_cast<double>((c.m * c.k + c.k * c.n) * itemsize(c.dtype) +
                                           outputs * c.m * c.n * itemsize(c.output));
  return {c.name(), [c](Inputs& in) { return c.make(in); },
          timing == Timing::none ? Cost{} : Cost{.flops = 2 * products, .bytes = bytes},
          timing == Timing::large, c.emulated_on};
}

/// "512x768x64": m, n and k of a product x W^T.
inline std::optional<GemmCase> gemm_of_shape(std::string_view shape, DType dtype) {
  int64_t sizes[3] = {};
  const char *at = shape.data(), *const end = at + shape.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    if (error != std::errc() || sizes[i] < 1 || (i < 2 && (next == end || *next != 'x'))) return {};
    at = i < 2 ? next + 1 : next;
  }
  if (at != end) return {};
  return GemmCase{.batch = {},
                  .m = sizes[0],
                  .n = sizes[1],
                  .k = sizes[2],
                  .dtype = dtype,
                  .output = dtype,
                  .b_layout = 'T'};
}

inline OpTable gemm_table() {
  std::vector<Case<GemmProblem>> cases;
  const auto add = [&](const GemmCase& c, Timing timing = Timing::none) {
    cases.push_back(gemm_case(c, timing));
  };
  struct Types {
    DType in, out;
  };
  constexpr Types kTypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                              {DType::f16, DType::f16},   {DType::f16, DType::f32},
                              {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
  constexpr Epilogue kEpilogues[] = {Epilogue::none, Epilogue::gelu, Epilogue::dgelu};
  for (const auto [in, out] : kTypes) {
    // Every layout of the operands, on integers that add up exactly.
    for (char a : {'N', 'T', 'S'}) {
      for (char b : {'N', 'T', 'S'}) {
        add({.batch = {},
             .m = 33,
             .n = 17,
             .k = 63,
             .dtype = in,
             .output = out,
             .a_layout = a,
             .b_layout = b,
             .bias = true,
             .integers = true});
        add({.batch = {2, 3},
             .m = 15,
             .n = 16,
             .k = 33,
             .dtype = in,
             .output = out,
             .a_layout = a,
             .b_layout = b,
             .bias = true,
             .accumulate = true,
             .integers = true});
      }
    }
    // Odd sizes, each as every dimension.
    for (int64_t size : {0, 1, 15, 16, 17, 33, 97}) {
      add({.batch = {}, .m = size, .n = 33, .k = 17, .dtype = in, .output = out, .b_layout = 'T'});
      add({.batch = {}, .m = 17, .n = size, .k = 33, .dtype = in, .output = out, .a_layout = 'T'});
      add({.batch = {}, .m = 33, .n = 17, .k = size, .dtype = in, .output = out, .bias = true});
    }
    add({.batch = {}, .m = 9, .n = 8, .k = 0, .dtype = in, .output = out, .accumulate = true});
    // Long sums: where libraries split K.
    for (int64_t k : {1000, 1024, 2048, 2113, 4160}) {
      add({.batch = {},
           .m = 48,
           .n = 17,
           .k = k,
           .dtype = in,
           .output = out,
           .a_layout = 'T',
           .emulated_on = k == 1000 ? "" : "cpu"});
    }
    add({.batch = {},
         .m = 17,
         .n = 33,
         .k = 4160,
         .dtype = in,
         .output = out,
         .emulated_on = "cpu"});
    add({.batch = {}, .m = 1, .n = 17, .k = 4160, .dtype = in, .output = out, .accumulate = true});
    add({.batch = {}, .m = 17, .n = 1, .k = 4160, .dtype = in, .output = out, .a_layout = 'T'});
    add({.batch = {},
         .m = 16,
         .n = 8,
         .k = 12608,
         .dtype = in,
         .output = out,
         .a_layout = 'T',
         .accumulate = true,
         .emulated_on = "mma"});
    // Batches: repeated operands, groups in one call, C that is not dense.
    for (char a : {'N', 'R'}) {
      for (char b : {'N', 'R', 'T'}) {
        add({.batch = {3, 2},
             .m = 17,
             .n = 33,
             .k = 16,
             .dtype = in,
             .output = out,
             .a_layout = a,
             .b_layout = b});
      }
    }
    add({.batch = {40},
         .m = 65,
         .n = 65,
         .k = 32,
         .dtype = in,
         .output = out,
         .b_layout = 'T',
         .emulated_on = "cpu"});
    for (char c : {'S', 'W'}) {
      for (Epilogue epilogue : kEpilogues) {
        add({.batch = {},
             .m = 33,
             .n = 40,
             .k = 65,
             .dtype = in,
             .output = out,
             .bias = true,
             .epilogue = epilogue,
             .c_layout = c});
        add({.batch = {4},
             .m = 33,
             .n = 40,
             .k = 65,
             .dtype = in,
             .output = out,
             .b_layout = 'R',
             .bias = true,
             .epilogue = epilogue,
             .c_layout = c});
      }
    }
    for (char c : {'S', 'W'}) {
      add({.batch = {},
           .m = 33,
           .n = 40,
           .k = 65,
           .dtype = in,
           .output = out,
           .bias = true,
           .accumulate = true,
           .c_layout = c});
      add({.batch = {},
           .m = 33,
           .n = 40,
           .k = 2065,
           .dtype = in,
           .output = out,
           .a_layout = 'T',
           .accumulate = true,
           .c_layout = c});
    }
    // What a linear layer adds or sums on its way out: one matrix, a batch, gaps in C, no rows.
    for (char c : {'N', 'S', 'W'}) {
      add({.batch = {},
           .m = 33,
           .n = 40,
           .k = 65,
           .dtype = in,
           .output = out,
           .bias = true,
           .c_layout = c,
           .residual = true});
      add({.batch = {3},
           .m = 33,
           .n = 40,
           .k = 64,
           .dtype = in,
           .output = out,
           .epilogue = Epilogue::dgelu,
           .c_layout = c,
           .bias_gradient = true});
    }
    add({.batch = {2},
         .m = 17,
         .n = 24,
         .k = 0,
         .dtype = in,
         .output = out,
         .bias = true,
         .residual = true});
    add({.batch = {},
         .m = 0,
         .n = 33,
         .k = 17,
         .dtype = in,
         .output = out,
         .epilogue = Epilogue::dgelu,
         .bias_gradient = true});
    add({.batch = {},
         .m = 49,
         .n = 40,
         .k = 584,
         .dtype = in,
         .output = out,
         .epilogue = Epilogue::dgelu,
         .bias_gradient = true,
         .emulated_on = "mma"});
    for (Epilogue epilogue : kEpilogues) {
      add({.batch = {2},
           .m = 197,
           .n = 96,
           .k = 48,
           .dtype = in,
           .output = out,
           .b_layout = 'R',
           .bias = true,
           .epilogue = epilogue,
           .emulated_on = "mma"});
    }
  }
  // Numerics that a caller asks for.
  const auto add_numerics = [&](DType in, DType out, MatmulNumerics numerics) {
    const auto add_one = [&](GemmCase c) {
      c.dtype = c.b_dtype = in, c.output = out, c.numerics = numerics;
      add(c);
    };
    for (char a : {'N', 'T', 'S'}) {
      add_one(
          {.batch = {2}, .m = 5, .n = 19, .k = 37, .a_layout = a, .b_layout = 'T', .bias = true});
      add_one({.batch = {}, .m = 3, .n = 16, .k = 260, .a_layout = a, .accumulate = true});
    }
    add_one({.batch = {}, .m = 33, .n = 17, .k = 63, .bias = true, .integers = true});
    add_one({.batch = {3},
             .m = 4,
             .n = 7,
             .k = 9,
             .b_layout = 'R',
             .bias = true,
             .epilogue = Epilogue::gelu,
             .c_layout = 'W'});
    add_one({.batch = {}, .m = 6, .n = 7, .k = 40, .epilogue = Epilogue::dgelu});
    add_one({.batch = {}, .m = 6, .n = 7, .k = 40, .bias = true, .residual = true});
    add_one(
        {.batch = {}, .m = 6, .n = 7, .k = 40, .epilogue = Epilogue::dgelu, .bias_gradient = true});
    add_one({.batch = {}, .m = 1, .n = 1, .k = 1});
    add_one({.batch = {}, .m = 4, .n = 5, .k = 0, .bias = true});
  };
  const Accumulation ieee = Accumulation::ieee, exact = Accumulation::exact;
  add_numerics(DType::f32, DType::f32, {ieee, Tf32::truncate});
  add_numerics(DType::f32, DType::f32, {ieee, Tf32::nearest});
  add_numerics(DType::f32, DType::f32, {exact});
  add_numerics(DType::f32, DType::f32, {exact, Tf32::truncate});
  for (DType in : {DType::f16, DType::bf16}) {
    add_numerics(in, in, {exact});
    add_numerics(in, DType::f32, {exact});
  }
  add_numerics(DType::f16, DType::f16, {Accumulation::v100});
  for (Accumulation gpu :
       {Accumulation::a100, Accumulation::ada, Accumulation::h100, Accumulation::b200}) {
    add_numerics(DType::f16, DType::f32, {gpu});
    add_numerics(DType::bf16, DType::bf16, {gpu});
    add_numerics(DType::f32, DType::f32, {gpu, Tf32::truncate});
  }
  add_numerics(DType::f32, DType::f32, {Accumulation::h100, Tf32::nearest});
  // TF32 on tensor cores: several tiles, tails in each dimension, K beyond twice the depth of a
  // pipeline of 4 stages of 16, lines that 16-byte copies do not fit, K split.
  for (Tf32 rounding : {Tf32::truncate, Tf32::nearest}) {
    const auto add_tf32 = [&](GemmCase c) {
      c.numerics = {ieee, rounding};
      add(c);
    };
    for (char a : {'N', 'T'}) {
      for (char b : {'N', 'T'}) {
        add_tf32({.batch = {2}, .m = 72, .n = 132, .k = 148, .a_layout = a, .b_layout = b});
      }
    }
    add_tf32({.batch = {}, .m = 67, .n = 65, .k = 133, .b_layout = 'T', .integers = true});
    add_tf32({.batch = {}, .m = 36, .n = 20, .k = 600, .a_layout = 'T', .accumulate = true});
  }
  // fp8, of both formats, with a scale, beyond one interval of promotion.
  for (Accumulation accumulation :
       {ieee, exact, Accumulation::ada, Accumulation::h100, Accumulation::b200}) {
    for (auto [a, b] : {std::pair(DType::f8e4m3, DType::f8e4m3),
                        {DType::f8e5m2, DType::f8e4m3},
                        {DType::f8e4m3, DType::f8e5m2}}) {
      for (DType out : {DType::f32, DType::bf16}) {
        for (int64_t k : {0, 1, 127, 128, 129, 400}) {
          add({.batch = {},
               .m = 5,
               .n = 19,
               .k = k,
               .dtype = a,
               .output = out,
               .a_layout = k == 129 ? 'T' : 'N',
               .b_layout = k == 127 ? 'T' : 'N',
               .bias = k > 1,
               .accumulate = k == 400,
               .numerics = {accumulation},
               .b_dtype = b,
               .scale = 0.3});
        }
      }
    }
  }
  add({.batch = {},
       .m = 256,
       .n = 256,
       .k = 256,
       .dtype = DType::f8e4m3,
       .b_layout = 'T',
       .b_dtype = DType::f8e4m3},
      Timing::timed);
  // fp8 on tensor cores: every pair of formats, every layout, several tiles in each dimension,
  // tails in each, lines that TMA takes and lines that are copied, and K that wraps a ring of 4
  // stages of 128 twice, split or, where a model's bits are asked for, whole.
  const DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;
  for (DType a : {e4m3, e5m2}) {
    for (DType b : {e4m3, e5m2}) {
      add({.batch = {},
           .m = 136,
           .n = 264,
           .k = 144,
           .dtype = a,
           .output = DType::bf16,
           .b_layout = 'T',
           .bias = true,
           .integers = true,
           .b_dtype = b,
           .emulated_on = "fp8"});
      add({.batch = {},
           .m = 40,
           .n = 72,
           .k = 80,
           .dtype = a,
           .output = DType::f16,
           .b_layout = 'T',
           .b_dtype = b,
           .scale = 0.3});
    }
    add({.batch = {},
         .m = 33,
         .n = 40,
         .k = 300,
         .dtype = a,
         .b_layout = 'T',
         .numerics = {Accumulation::h100},
         .b_dtype = a});
  }
  for (char a : {'N', 'T'}) {
    for (char b : {'N', 'T'}) {
      add({.batch = {},
           .m = 72,
           .n = 136,
           .k = 1160,
           .dtype = e4m3,
           .output = DType::bf16,
           .a_layout = a,
           .b_layout = b,
           .bias = true,
           .integers = true,
           .emulated_on = "fp8"});
      add({.batch = {3},
           .m = 40,
           .n = 72,
           .k = 88,
           .dtype = e5m2,
           .output = DType::bf16,
           .a_layout = a,
           .b_layout = b,
           .b_dtype = e4m3,
           .emulated_on = "fp8"});
    }
  }
  add({.batch = {},
       .m = 17,
       .n = 24,
       .k = 1160,
       .dtype = e4m3,
       .b_layout = 'T',
       .numerics = {Accumulation::h100},
       .emulated_on = "fp8"});
  for (Epilogue epilogue : kEpilogues) {
    for (char c : {'N', 'S', 'W'}) {
      add({.batch = {2},
           .m = 33,
           .n = 40,
           .k = 48,
           .dtype = epilogue == Epilogue::dgelu ? e5m2 : e4m3,
           .output = DType::bf16,
           .b_layout = 'R',
           .bias = true,
           .epilogue = epilogue,
           .c_layout = c,
           .b_dtype = e4m3,
           .scale = 0.5,
           .residual = epilogue == Epilogue::none,
           .bias_gradient = epilogue == Epilogue::dgelu,
           .emulated_on = c == 'N' ? "" : "fp8"});
    }
  }
  add({.batch = {},
       .m = 40,
       .n = 72,
       .k = 584,
       .dtype = e5m2,
       .output = DType::bf16,
       .epilogue = Epilogue::dgelu,
       .b_dtype = e4m3,
       .bias_gradient = true,
       .emulated_on = "fp8"});
  add({.batch = {},
       .m = 72,
       .n = 40,
       .k = 600,
       .dtype = e5m2,
       .a_layout = 'T',
       .accumulate = true,
       .b_dtype = e4m3,
       .emulated_on = "fp8"});
  // The three products of a layer of ViT-B/16 with 128 images.
  const int64_t tokens = 25216, width = 768, hidden = 3072;
  const auto add_layer = [&](int64_t m, int64_t n, int64_t k, DType a, DType out, char a_layout,
                             char b_layout) {
    add({.batch = {},
         .m = m,
         .n = n,
         .k = k,
         .dtype = a,
         .output = out,
         .a_layout = a_layout,
         .b_layout = b_layout,
         .b_dtype = e4m3},
        Timing::large);
  };
  add_layer(tokens, hidden, width, e4m3, DType::bf16, 'N', 'T');
  add_layer(tokens, width, hidden, e5m2, DType::bf16, 'N', 'N');
  add_layer(hidden, width, tokens, e5m2, DType::f32, 'T', 'N');
  add({.batch = {}, .m = 256, .n = 256, .k = 256, .numerics = {exact}}, Timing::timed);
  add({.batch = {},
       .m = 256,
       .n = 256,
       .k = 256,
       .dtype = DType::bf16,
       .numerics = {Accumulation::h100}},
      Timing::timed);
  // What tensor cores take, whose rows are multiples of 16 bytes: every layout, several tiles in
  // each dimension, tails in each, K beyond twice the depth of a pipeline of 4 stages of 64 and
  // short of one step, K split.
  for (const auto [in, out] : kTypes) {
    if (itemsize(in) != 2) continue;
    struct Size {
      int64_t m, n, k;
    };
    for (char a : {'N', 'T'}) {
      for (char b : {'N', 'T'}) {
        // The rungs without tensor cores: several of their tiles and steps once.
        const bool is_for_all = a == 'N' && b == 'T' && in == DType::bf16 && out == in;
        for (const Size s : {Size{136, 264, 8}, Size{264, 200, 120}, Size{72, 136, 584}}) {
          add({.batch = {},
               .m = s.m,
               .n = s.n,
               .k = s.k,
               .dtype = in,
               .output = out,
               .a_layout = a,
               .b_layout = b,
               .bias = true,
               .integers = true,
               .emulated_on = s.k == 8 || is_for_all ? "" : "mma"});
        }
        add({.batch = {3},
             .m = 40,
             .n = 72,
             .k = 88,
             .dtype = in,
             .output = out,
             .a_layout = a,
             .b_layout = b});
      }
    }
    for (Epilogue epilogue : kEpilogues) {
      add({.batch = {},
           .m = 136,
           .n = 200,
           .k = 72,
           .dtype = in,
           .output = out,
           .b_layout = 'T',
           .bias = true,
           .epilogue = epilogue,
           .bias_gradient = epilogue == Epilogue::dgelu,
           .emulated_on = "mma"});
    }
    add({.batch = {},
         .m = 136,
         .n = 72,
         .k = 40,
         .dtype = in,
         .output = out,
         .b_layout = 'T',
         .residual = true});
    // A bias gradient under split K.
    add({.batch = {},
         .m = 40,
         .n = 72,
         .k = 584,
         .dtype = in,
         .output = out,
         .epilogue = Epilogue::dgelu,
         .bias_gradient = true,
         .emulated_on = "mma"});
    add({.batch = {},
         .m = 200,
         .n = 72,
         .k = 616,
         .dtype = in,
         .output = out,
         .a_layout = 'T',
         .accumulate = true,
         .emulated_on = "mma"});
    add({.batch = {4}, .m = 72, .n = 40, .k = 64, .dtype = in, .output = out, .b_layout = 'R'});
    add({.batch = {}, .m = 72, .n = 40, .k = 64, .dtype = in, .output = out, .c_layout = 'W'});
  }
  // Timed: products of a training step of ViT-B/16 with 4 images of 197 tokens and of the compact
  // model with 64 of 65; on GPUs, of ViT-B/16 with 128 images.
  for (DType dtype : {DType::f32, DType::bf16}) {
    const auto forward = [&](int64_t tokens, int64_t in, int64_t out, Epilogue epilogue,
                             Timing timing) {
      add({.batch = {},
           .m = tokens,
           .n = out,
           .k = in,
           .dtype = dtype,
           .output = dtype,
           .b_layout = 'T',
           .bias = true,
           .epilogue = epilogue},
          timing);
    };
    const auto data_gradient = [&](int64_t tokens, int64_t in, int64_t out, Epilogue epilogue,
                                   Timing timing) {
      add({.batch = {},
           .m = tokens,
           .n = in,
           .k = out,
           .dtype = dtype,
           .output = dtype,
           .epilogue = epilogue},
          timing);
    };
    const auto weight_gradient = [&](int64_t tokens, int64_t in, int64_t out, Timing timing) {
      add({.batch = {}, .m = out, .n = in, .k = tokens, .dtype = dtype, .a_layout = 'T'}, timing);
    };
    const auto vit_b_16 = [&](int64_t images, Timing timing) {
      const int64_t tokens = 197 * images;
      forward(tokens, 768, 2304, Epilogue::none, timing);
      forward(tokens, 768, 3072, Epilogue::gelu, timing);
      forward(tokens, 3072, 768, Epilogue::none, timing);
      data_gradient(tokens, 3072, 768, Epilogue::dgelu, timing);
      weight_gradient(tokens, 768, 3072, timing);
    };
    vit_b_16(4, Timing::timed);
    vit_b_16(128, Timing::large);
    forward(25216, 768, 768, Epilogue::none, Timing::large);
    weight_gradient(25216, 768, 768, Timing::large);
    forward(4160, 128, 256, Epilogue::gelu, Timing::timed);
    data_gradient(4160, 128, 384, Epilogue::none, Timing::timed);
    weight_gradient(4160, 128, 384, Timing::timed);
    // Attention's scores and values.
    add({.batch = {48}, .m = 197, .n = 197, .k = 64, .dtype = dtype, .b_layout = 'T'},
        Timing::timed);
    add({.batch = {48}, .m = 197, .n = 64, .k = 197, .dtype = dtype, .output = dtype},
        Timing::timed);
    add({.batch = {256}, .m = 65, .n = 65, .k = 32, .dtype = dtype, .b_layout = 'T'},
        Timing::timed);
  }
  OpTable table = make_table(gemm_op(), cases, gemm_reference);
  table.of_shape = [](std::string_view shape, DType dtype) -> std::optional<CaseEntry> {
    const std::optional<GemmCase> c = gemm_of_shape(shape, dtype);
    if (!c) return {};
    return make_entry(gemm_op(), gemm_case(*c, Timing::timed), gemm_reference);
  };
  return table;
}

}  // namespace weft::kernels
