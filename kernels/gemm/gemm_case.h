// A case of gemm, and lists of them: what the test's and the timed cases are made of.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// dtypes of a, b and c.
struct GemmTypes {
  DType a = DType::f32, b = a, c = a;
};

/// What a case varies; everything else follows.
struct GemmCase {
  char a_layout = 'N', b_layout = 'N';  // N, T: transposed, S: strided, R: repeated over the batch
  bool bias = false;
  Epilogue epilogue = Epilogue::kNone;
  bool accumulate = false;
  bool integers = false;
  char c_layout = 'N';  // N, S: strided, W: columns of a wider buffer
  double scale = 1;
  bool residual = false;
  bool bias_gradient = false;
  const char* emulated_on = "";  // kernels/testing/op_table.h

  // Set by GemmCases::add.
  Shape batch = {};
  int64_t m = 0, n = 0, k = 0;
  GemmTypes types = {};
  MatmulNumerics numerics = {};

  std::string name() const {
    const char* const epilogues[] = {"", "_gelu", "_dgelu"};
    std::string arithmetic = numerics == MatmulNumerics{} ? "" : " " + to_string(numerics);
    std::ranges::replace(arithmetic, ' ', '_');
    return fmt::format(
        "{}{}x{}x{}_{}{}_{}_{}{}{}{}{}{}{}{}{}{}", batch.empty() ? "" : to_string(batch), m, n, k,
        weft::name(types.a), types.b == types.a ? "" : weft::name(types.b), weft::name(types.c),
        a_layout, b_layout, c_layout, bias ? "_bias" : "", epilogues[static_cast<int>(epilogue)],
        accumulate ? "_accumulate" : "", residual ? "_residual" : "",
        bias_gradient ? "_bias_gradient" : "", integers ? "_integers" : "", arithmetic);
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
      return integers ? in.integers(shape, types.c) : in.uniform(shape, types.c, -2, 2);
    };
    GemmProblem p{.a = operand(in, m, k, a_layout, types.a),
                  .b = operand(in, k, n, b_layout, types.b),
                  .scale = scale,
                  .numerics = numerics};
    const Tensor old = accumulate ? values() : Tensor();
    p.c = c_layout == 'S'   ? in.strided_output(shape, types.c)
          : c_layout == 'W' ? in.row_strided_output(shape, types.c)
                            : in.output(shape, types.c);
    if (accumulate) {
      visit_dtype(types.c, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T* next = old.data<T>();
        for_each_offset(shape, p.c.strides(), [&](int64_t i) { p.c.data<T>()[i] = *next++; });
      });
    }
    if (bias)
      p.bias = integers ? in.integers({n}, DType::f32)
                        : in.uniform({n}, itemsize(types.a) == 1 ? types.c : types.a, -1, 1);
    p.epilogue = epilogue;
    p.accumulate = accumulate;
    if (epilogue == Epilogue::kGelu) p.aux = in.output(shape, types.c);
    if (residual) p.residual = c_layout == 'S' ? in.strided(values()) : values();
    if (bias_gradient) {
      p.bias_gradient = in.output({n}, types.a == DType::f64 ? DType::f64 : DType::f32);
    }
    if (epilogue == Epilogue::kDgelu) p.aux = in.uniform(shape, types.c, -6, 6);
    return p;
  }

  Cost cost() const {
    const auto matrices = static_cast<double>(numel(batch));
    // Each operand once; under a GELU also its argument, and an old C.
    const int64_t outputs = 1 + (epilogue != Epilogue::kNone) + accumulate + residual;
    return {.flops = 2 * matrices * static_cast<double>(m * n * k),
            .bytes = matrices * static_cast<double>((m * k + k * n) * itemsize(types.a) +
                                                    outputs * m * n * itemsize(types.c))};
  }
};

/// When a case is run.
enum class Timing : uint8_t { kNone, kTimed, kLarge };

/// Cases in the making: each has the types and numerics that are set when it is added.
struct GemmCases {
  GemmTypes types;
  MatmulNumerics numerics;
  std::vector<Case<GemmProblem>> list;

  void add(const Shape& batch, int64_t m, int64_t n, int64_t k, GemmCase c = {},
           Timing timing = Timing::kNone) {
    c.batch = batch;
    c.m = m, c.n = n, c.k = k;
    c.types = types;
    c.numerics = numerics;
    list.push_back({c.name(), [c](Inputs& in) { return c.make(in); },
                    timing == Timing::kNone ? Cost{} : c.cost(), timing == Timing::kLarge,
                    c.emulated_on});
  }
};

}  // namespace weft::kernels
