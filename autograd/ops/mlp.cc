// Two linear layers with a GELU between them. Apart, the second hands the gradient of its input to
// the first, which multiplies it by GELU's derivative and sums it for its bias: passes over the
// widest tensor of a transformer. Together, both happen to the product as it is written.
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/gemm/gemm.h"

namespace weft::ops {
namespace {

Tensor transposed(const Tensor& x) { return view::transpose(x, -1, -2); }

struct HiddenGradient {
  Tensor dz, db;  // of the pre-activation and, where asked for, of the bias that is part of it
};

/// dz = (dy W) gelu'(z); db = its column sums in `bias`'s dtype, undefined without one.
HiddenGradient hidden_gradient(const Tensor& dy, const Tensor& weight, const Tensor& z,
                               const Tensor& bias) {
  HiddenGradient result{Tensor::empty(z.shape(), z.dtype(), z.device()), {}};
  kernels::GemmProblem problem{
      .a = dy, .b = weight, .c = result.dz, .epilogue = kernels::Epilogue::kDgelu, .aux = z};
  // A CPU takes a pass for the sums either way: that of linear, and its bits.
  const bool sums_in_product = bias.defined() && z.device().type != DeviceType::cpu;
  if (sums_in_product) {
    const DType wide = z.dtype() == DType::f64 ? DType::f64 : DType::f32;
    problem.bias_gradient = Tensor::empty({z.size(1)}, wide, z.device());
  }
  kernels::gemm(problem);
  if (sums_in_product) {
    result.db = raw::contiguous(problem.bias_gradient, bias.dtype());
  } else if (bias.defined()) {
    result.db = raw::sum_rows(result.dz, bias.dtype());
  }
  return result;
}

}  // namespace

Tensor mlp(const Tensor& input, const Tensor& weight_1, const Tensor& bias_1,
           const Tensor& weight_2, const Tensor& bias_2) {
  const auto is_matrix_for = [](const Tensor& w, const Tensor& bias, int64_t columns) {
    return w.defined() && w.dim() == 2 && w.size(1) == columns &&
           (!bias.defined() || bias.shape() == Shape{w.size(0)});
  };
  // What does not fit is left to linear to report; fp8 keeps codes of its own.
  const bool fits =
      input.defined() && input.dim() > 0 && is_matrix_for(weight_1, bias_1, input.size(-1)) &&
      is_matrix_for(weight_2, bias_2, weight_1.size(0)) && is_floating(input.dtype()) &&
      is_floating(weight_1.dtype()) && weight_1.dtype() == weight_2.dtype();
  if (!fits || fp8_in_force())
    return linear(linear_gelu(input, weight_1, bias_1), weight_2, bias_2);
  raw::check_devices("mlp", {input, weight_1, bias_1, weight_2, bias_2});
  const DType dtype = autocast_products(input, weight_1);
  const Tensor x = reshape(cast(input, dtype), raw::as_rows(input));
  const Tensor w1 = autocast_weight(weight_1, dtype), w2 = autocast_weight(weight_2, dtype);
  const Tensor z = Tensor::empty({x.size(0), weight_1.size(0)}, dtype, x.device());
  const Tensor h = Tensor::empty(z.shape(), dtype, x.device());
  kernels::gemm({.a = x,
                 .b = transposed(w1),
                 .c = h,
                 .bias = bias_1,
                 .epilogue = kernels::Epilogue::kGelu,
                 .aux = z});
  Tensor y = Tensor::empty({x.size(0), weight_2.size(0)}, dtype, x.device());
  kernels::gemm({.a = h, .b = transposed(w2), .c = y, .bias = bias_2});
  enum { kX, kW1, kW2, kWeight1, kBias1, kWeight2, kBias2, kZ, kH };
  y = record(
      "mlp", {x, weight_1, bias_1, weight_2, bias_2}, y,
      {x, w1, w2, weight_1, bias_1, weight_2, bias_2, z, h}, [](const Backward& b) -> Tensors {
        const Tensor x = b.saved(kX);
        const Tensor weight_1 = b.saved(kWeight1), bias_1 = b.saved(kBias1);
        const Tensor weight_2 = b.saved(kWeight2), bias_2 = b.saved(kBias2);
        const bool needs_hidden = b.needs(0) || b.needs(1) || b.needs(2);
        Tensor dx, dw1, db1, dw2, db2;
        if (b.create_graph()) {
          const Tensor dy = b.dy();
          const Tensor wide_1 = cast(weight_1, x.dtype()), wide_2 = cast(weight_2, x.dtype());
          Tensor z = matmul(x, transpose(wide_1, 0, 1));
          if (bias_1.defined()) z = add(z, bias_1);
          const Tensor h = gelu(z);
          if (b.needs(3)) dw2 = cast(matmul(transpose(dy, 0, 1), h), weight_2.dtype());
          if (b.needs(4)) db2 = cast(sum(dy, {0}), bias_2.dtype());
          if (!needs_hidden) return {dx, dw1, db1, dw2, db2};
          const Tensor dz = grad({h}, {z}, {matmul(dy, wide_2)}, {.create_graph = true})[0];
          if (b.needs(0)) dx = matmul(dz, wide_1);
          if (b.needs(1)) dw1 = cast(matmul(transpose(dz, 0, 1), x), weight_1.dtype());
          if (b.needs(2)) db1 = cast(sum(dz, {0}), bias_1.dtype());
          return {dx, dw1, db1, dw2, db2};
        }
        const Tensor dy = raw::contiguous(b.dy(), x.dtype());
        if (b.needs(3)) dw2 = raw::matmul(transposed(dy), b.saved(kH), weight_2.dtype());
        if (b.needs(4)) db2 = raw::sum_rows(dy, bias_2.dtype());
        if (!needs_hidden) return {dx, dw1, db1, dw2, db2};
        const auto [dz, db] =
            hidden_gradient(dy, b.saved(kW2), b.saved(kZ), b.needs(2) ? bias_1 : Tensor());
        db1 = db;
        if (b.needs(0)) dx = raw::matmul(dz, b.saved(kW1), x.dtype());
        if (b.needs(1)) dw1 = raw::matmul(transposed(dz), x, weight_1.dtype());
        return {dx, dw1, db1, dw2, db2};
      });
  Shape shape = input.shape();
  shape[shape.size() - 1] = weight_2.size(0);
  return view(y, shape);
}

}  // namespace weft::ops
