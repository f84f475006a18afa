// Shapes and dtypes that layer_norm is tested and timed on.
#pragma once

#include "kernels/layer_norm/layer_norm.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// What a case of layer_norm has beside its shape.
struct LayerNormForm {
  DType x = DType::f32, y = DType::f32;  // y is also dy's and residual's
  bool backward = false;
  bool residual = false;  // backward: ds, and the residual's gradient where y has another dtype
  bool affine = true;
  bool strided = false;
  DType affine_dtype() const { return x == DType::f64 ? DType::f64 : DType::f32; }
};

inline LayerNormProblem layer_norm_case(Inputs& in, const Shape& shape, const LayerNormForm& form) {
  Shape rows = shape;
  rows.erase(rows.size() - 1);
  const Shape columns = {shape.back()};
  const DType statistics = form.affine_dtype();
  // Uniform numbers take a fifth of the time.
  const auto random = [&](const Shape& s, DType dtype, double scale = 1, double shift = 0) {
    return numel(s) > 100000 ? in.uniform(s, dtype, shift - 2 * scale, shift + 2 * scale)
                             : in.normal(s, dtype, scale, shift);
  };
  const auto layout = [&](Tensor t) { return form.strided ? in.strided(t) : t; };
  const auto output = [&](const Shape& s, DType dtype) {
    return form.strided ? in.strided_output(s, dtype) : in.output(s, dtype);
  };
  LayerNormProblem p{.x = layout(random(shape, form.x, 2, 1))};
  if (form.affine) p.gamma = layout(random(columns, statistics, 0.5, 1));
  if (form.backward) {
    p.mean = layout(random(rows, statistics, 0.1, 1));
    p.rstd = layout(in.uniform(rows, statistics, 0.3, 0.7));
    p.dy = layout(random(shape, form.y));
    if (form.residual) p.ds = layout(random(shape, form.x));
    p.dx = output(shape, form.x);
    if (form.residual && form.x != form.y) p.dresidual = output(shape, form.y);
    if (form.affine) {
      p.dgamma = output(columns, statistics);
      p.dbeta = output(columns, statistics);
    }
    return p;
  }
  if (form.affine) p.beta = layout(random(columns, statistics));
  if (form.residual) {
    p.residual = layout(random(shape, form.y));
    p.sum = output(shape, form.x);
  }
  p.y = output(shape, form.y);
  p.mean = output(rows, statistics);
  p.rstd = output(rows, statistics);
  return p;
}

inline OpTable layer_norm_table() {
  using Problem = LayerNormProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](Shape shape, LayerNormForm form, Cost cost = {}, bool is_large = false) {
    std::string name =
        fmt::format("{}_{}_{}{}{}{}{}", to_string(shape), form.x, form.y,
                    form.backward ? "_backward" : "", form.residual ? "_residual" : "",
                    form.affine ? "" : "_plain", form.strided ? "_strided" : "");
    cases.push_back(
        {name, [=](Inputs& in) { return layer_norm_case(in, shape, form); }, cost, is_large});
  };
  const std::pair<DType, DType> dtypes[] = {{DType::f64, DType::f64},  {DType::f32, DType::f32},
                                            {DType::f16, DType::f16},  {DType::bf16, DType::bf16},
                                            {DType::f32, DType::bf16}, {DType::bf16, DType::f32}};
  for (auto [x, y] : dtypes) {
    for (bool backward : {false, true}) {
      for (bool residual : {false, true}) {
        const LayerNormForm form{.x = x, .y = y, .backward = backward, .residual = residual};
        for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 127, 192}) add({5, n}, form);
        add({0, 33}, form);
        add({2, 67, 64}, form);
        LayerNormForm strided = form;
        strided.strided = true;
        add({4, 5, 37}, strided);
        LayerNormForm plain = form;
        plain.affine = false;
        add({3, 65}, plain);
      }
    }
  }
  // More rows than a GPU's grid of gradients has warps: some take two.
  add({4800, 8}, {.x = DType::f32, .y = DType::bf16, .backward = true, .residual = true});
  // ViT-B/16 at batch 4, and the compact model at batch 64; on a GPU ViT-B/16 at batch 128.
  for (Shape shape : {Shape{4, 197, 768}, Shape{64, 65, 192}, Shape{128, 197, 768}}) {
    for (auto [x, y] : {dtypes[1], dtypes[3], dtypes[4]}) {
      for (bool backward : {false, true}) {
        for (bool residual : {false, true}) {
          if (shape.back() == 192 && !residual) continue;
          // x and y, or x, dy and dx; the residual adds two more, or ds and its gradient.
          const double nx = 1 + backward + residual;
          const double ny = 1 + (residual && (!backward || x != y));
          const double bytes = static_cast<double>(numel(shape)) *
                               (nx * static_cast<double>(itemsize(x)) + ny * itemsize(y));
          add(shape, {.x = x, .y = y, .backward = backward, .residual = residual},
              {.flops = 8.0 * numel(shape), .bytes = bytes}, shape[0] == 128);
        }
      }
    }
  }
  // A mean much larger than the deviations; a constant row; an infinity and a NaN.
  cases.push_back({"large_mean_f32", [](Inputs& in) {
                     return Problem{.x = in.normal({3, 768}, DType::f32, 1, 1000),
                                    .y = in.output({3, 768}, DType::f32)};
                   }});
  cases.push_back(
      {"special_f32", [](Inputs& in) {
         Tensor x = in.values({2, 2, 2, 2, 1, INFINITY, 0, 0, NAN, 1, 2, 3}, {3, 4}, DType::f32);
         return Problem{.x = x, .y = in.output({3, 4}, DType::f32)};
       }});
  // gamma and beta in the dtype of x, as a module cast to bf16 has them, and dgamma alone.
  cases.push_back({"bf16_affine", [](Inputs& in) {
                     return Problem{.x = in.normal({6, 40}, DType::bf16),
                                    .gamma = in.normal({40}, DType::bf16),
                                    .beta = in.normal({40}, DType::bf16),
                                    .y = in.output({6, 40}, DType::bf16)};
                   }});
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t n : {33, 40, 1100}) {
      cases.push_back({fmt::format("[9, {}]_{}_backward_dx_in_dy", n, dtype), [=](Inputs& in) {
                         Problem p{.x = in.normal({9, n}, dtype),
                                   .gamma = in.normal({n}, dtype),
                                   .mean = in.normal({9}, dtype, 0.1),
                                   .rstd = in.uniform({9}, dtype, 0.5, 2),
                                   .dy = in.inout(in.normal({9, n}, dtype))};
                         p.dx = p.dy;
                         p.dgamma = in.output({n}, dtype);
                         p.dbeta = in.output({n}, dtype);
                         return p;
                       }});
    }
  }
  cases.push_back({"dgamma_alone_bf16", [](Inputs& in) {
                     return Problem{.x = in.normal({70, 40}, DType::bf16),
                                    .gamma = in.normal({40}, DType::bf16),
                                    .mean = in.normal({70}, DType::f32, 0.1),
                                    .rstd = in.uniform({70}, DType::f32, 0.5, 2),
                                    .dy = in.normal({70, 40}, DType::bf16),
                                    .dgamma = in.output({40}, DType::bf16)};
                   }});
  return make_table(layer_norm_op(), std::move(cases), layer_norm_reference);
}

}  // namespace weft::kernels
