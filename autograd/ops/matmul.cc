// Matrix products. Inside an Autocast the operands are narrow; the gradient of a weight leaves the
// product in the weight's own dtype, so that f32 master weights get f32 gradients without a cast.
#include <utility>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/ops/recording.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/gemm/gemm.h"

namespace weft::ops {
namespace {

using kernels::Epilogue;

Tensor transposed(const Tensor& x) { return view::transpose(x, -1, -2); }

/// a [..., M, K] b [..., K, N] with equal batch dimensions.
Tensor batched(const Tensor& a, const Tensor& b) {
  Tensor c = raw::matmul(a, b, a.dtype());
  if (!is_observed(a, b)) return c;
  return record("matmul", {a, b}, c, {a, b}, [dtype = a.dtype()](const Backward& g) -> Tensors {
    const Tensor dc = cast(g.dy(), dtype);
    return {g.needs(0) ? matmul(dc, transpose(g.saved(1), -1, -2)) : Tensor(),
            g.needs(1) ? matmul(transpose(g.saved(0), -1, -2), dc) : Tensor()};
  });
}

Shape batch_of(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(shape.size() - 1);
  shape.erase(shape.size() - 1);
  return shape;
}

Tensor expand_batch(const Tensor& x, Shape batch) {
  batch.push_back(x.size(-2));
  batch.push_back(x.size(-1));
  return expand(x, batch);
}

/// y = scale x W^T + b of rows x [M, K], W [N, K]; with a GELU that of z, which is for backward.
struct Forward {
  Tensor y, z;
};

Forward forward(const Tensor& x, const Tensor& w, const Tensor& bias, DType dtype, bool with_gelu,
                double scale = 1) {
  Forward out{Tensor::empty({x.size(0), w.size(0)}, dtype, x.device()), {}};
  if (with_gelu) out.z = raw::empty_like(out.y);
  kernels::gemm({.a = x,
                 .b = transposed(w),
                 .c = out.y,
                 .bias = bias,
                 .epilogue = with_gelu ? Epilogue::kGelu : Epilogue::kNone,
                 .aux = out.z,
                 .scale = scale});
  return out;
}

/// x W^T + b in recorded ops.
Tensor composed(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Tensor z = matmul(x, transpose(w, 0, 1));
  return bias.defined() ? add(z, bias) : z;
}

/// The gradient of z from that of h = gelu(z), in recorded ops.
Tensor composed_gelu_gradient(const Tensor& z, const Tensor& h, const Tensor& dh) {
  return grad({h}, {z}, {dh}, {.create_graph = true})[0];
}

/// linear or linear_gelu. Under fp8 the operands are codes, and scales undo theirs.
Tensor linear_with(std::string_view op, const Tensor& input, const Tensor& weight,
                   const Tensor& bias, bool with_gelu) {
  raw::check_operands(op, {input, weight, bias}, 2);
  WEFT_CHECK(weight.dim() == 2 && input.dim() > 0 && input.size(-1) == weight.size(1),
             "{}: input {} does not fit weight {}: expected a last dimension of {}", op, input,
             weight, weight.dim() == 2 ? weight.size(1) : -1);
  WEFT_CHECK(!bias.defined() || bias.shape() == Shape{weight.size(0)},
             "{}: expected a bias of shape [{}], got {}", op, weight.size(0), bias);
  raw::check_f64(op, {input, weight, bias});
  const DType dtype = autocast_products(input, weight);
  const std::optional<Fp8Scaling> fp8 = dtype == DType::f64 ? std::nullopt : fp8_in_force();
  using Role = Fp8Scaling::Role;
  const Tensor x = reshape(cast(input, dtype), raw::as_rows(input));
  Fp8Scaling::Quantized a{x}, w;
  if (fp8) {
    a = fp8->quantize(weight, Role::kInput, x);
    w = fp8->quantize(weight, Role::kWeight, weight);
  } else {
    w.codes = autocast_weight(weight, dtype);
  }
  const auto [y, z] =
      forward(a.codes, w.codes, bias, dtype, with_gelu, a.inverse_scale * w.inverse_scale);
  const Tensor recorded = record(
      op, {x, weight, bias}, y, {a.codes, w.codes, weight, bias, z},
      [=, layer = fp8 ? weight : Tensor(), a_scale = a.inverse_scale, w_scale = w.inverse_scale,
       of_weight = weight.dtype(),
       of_bias = bias.defined() ? bias.dtype() : dtype](const Backward& b) -> Tensors {
        if (fp8) b.require_no_graph();
        // What no gradient is asked of may have been changed in place: it is not looked at.
        Tensor dx, dw, db;
        if (b.create_graph()) {
          Tensor dz = b.dy();
          if (with_gelu) {
            const Tensor z = composed(b.saved(0), cast(b.saved(2), dtype), b.saved(3));
            dz = composed_gelu_gradient(z, gelu(z), dz);
          }
          if (b.needs(0)) dx = matmul(dz, cast(b.saved(2), dtype));
          if (b.needs(1)) dw = cast(matmul(transpose(dz, 0, 1), b.saved(0)), of_weight);
          if (b.needs(2)) db = cast(sum(dz, {0}), of_bias);
          return {dx, dw, db};
        }
        Tensor dz = raw::contiguous(b.dy(), dtype);
        if (with_gelu) {  // gelu'(z) dy
          const Tensor dy = std::exchange(dz, raw::empty_like(dz));
          kernels::binary(
              {.op = kernels::BinaryOp::kGeluErfGrad, .a = b.saved(4), .b = dy, .y = dz});
        }
        Fp8Scaling::Quantized q{dz};
        if (fp8) q = fp8->quantize(layer, Role::kGradient, dz);
        if (b.needs(0)) dx = raw::matmul(q.codes, b.saved(1), dtype, q.inverse_scale * w_scale);
        if (b.needs(1)) {
          dw = raw::matmul(transposed(q.codes), b.saved(0), of_weight, q.inverse_scale * a_scale);
        }
        if (b.needs(2)) db = raw::sum_rows(dz, of_bias);
        return {dx, dw, db};
      });
  return view(recorded, raw::with_last(input.shape(), weight.size(0)));
}

struct HiddenGradient {
  Tensor dz, db;  // of the pre-activation and, where asked for, of the bias that is part of it
};

/// dz = (dy W) gelu'(z); db = its column sums in `bias`'s dtype, undefined without one.
HiddenGradient hidden_gradient(const Tensor& dy, const Tensor& weight, const Tensor& z,
                               const Tensor& bias) {
  HiddenGradient result{raw::empty_like(z), {}};
  kernels::GemmProblem problem{
      .a = dy, .b = weight, .c = result.dz, .epilogue = Epilogue::kDgelu, .aux = z};
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

Tensor matmul(const Tensor& first, const Tensor& second) {
  raw::check_operands("matmul", {first, second}, 2);
  WEFT_CHECK(first.dim() > 0 && second.dim() > 0,
             "matmul: expected at least one dimension, got {} and {}", first, second);
  const Tensor a0 = autocast_cast(first), b0 = autocast_cast(second);
  const DType dtype = promote(a0.dtype(), b0.dtype());
  Tensor a = cast(a0, dtype), b = cast(b0, dtype);
  const bool row = a.dim() == 1, column = b.dim() == 1;
  if (row) a = unsqueeze(a, 0);
  if (column) b = unsqueeze(b, 1);
  WEFT_CHECK(a.size(-1) == b.size(-2), "matmul: {} and {} do not fit: {} columns meet {} rows",
             first, second, a.size(-1), b.size(-2));
  Tensor c;
  if (b.dim() == 2 && a.dim() == 2) {
    c = batched(a, b);
  } else if (b.dim() == 2 && a.dim() > 2) {
    c = reshape(batched(reshape(a, raw::as_rows(a)), b), raw::with_last(a.shape(), b.size(1)));
  } else {
    const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "matmul");
    c = batched(expand_batch(a, batch), expand_batch(b, batch));
  }
  if (column) c = squeeze(c, -1);
  if (row) c = squeeze(c, column ? -1 : -2);
  return c;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_with("linear", x, weight, bias, false);
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_with("linear_gelu", x, weight, bias, true);
}

// Apart, the second layer hands the gradient of its input to the first, which multiplies it by
// GELU's derivative and sums it for its bias: passes over the widest tensor of a transformer.
// Together, both happen to the product as it is written.
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
  raw::check_operands("mlp", {input, weight_1, bias_1, weight_2, bias_2});
  raw::check_f64("mlp", {input, weight_1, bias_1, weight_2, bias_2});
  const DType dtype = autocast_products(input, weight_1);
  const Tensor x = reshape(cast(input, dtype), raw::as_rows(input));
  const Tensor w1 = autocast_weight(weight_1, dtype), w2 = autocast_weight(weight_2, dtype);
  const auto [h, z] = forward(x, w1, bias_1, dtype, true);
  Tensor y = forward(h, w2, bias_2, dtype, false).y;
  enum { kX, kW1, kW2, kWeight1, kBias1, kWeight2, kBias2, kZ, kH };
  y = record("mlp", {x, weight_1, bias_1, weight_2, bias_2}, y,
             {x, w1, w2, weight_1, bias_1, weight_2, bias_2, z, h},
             [dtype, of_weights = weight_1.dtype()](const Backward& b) -> Tensors {
               const bool needs_hidden = b.needs(0) || b.needs(1) || b.needs(2);
               Tensor dx, dw1, db1, dw2, db2;
               if (b.create_graph()) {
                 const Tensor x = b.saved(kX), dy = b.dy();
                 const Tensor weight_1 = b.saved(kWeight1), bias_1 = b.saved(kBias1);
                 const Tensor weight_2 = b.saved(kWeight2), bias_2 = b.saved(kBias2);
                 const Tensor wide_1 = cast(weight_1, x.dtype()),
                              wide_2 = cast(weight_2, x.dtype());
                 const Tensor z = composed(x, wide_1, bias_1), h = gelu(z);
                 if (b.needs(3)) dw2 = cast(matmul(transpose(dy, 0, 1), h), weight_2.dtype());
                 if (b.needs(4)) db2 = cast(sum(dy, {0}), bias_2.dtype());
                 if (!needs_hidden) return {dx, dw1, db1, dw2, db2};
                 const Tensor dz = composed_gelu_gradient(z, h, matmul(dy, wide_2));
                 if (b.needs(0)) dx = matmul(dz, wide_1);
                 if (b.needs(1)) dw1 = cast(matmul(transpose(dz, 0, 1), x), weight_1.dtype());
                 if (b.needs(2)) db1 = cast(sum(dz, {0}), bias_1.dtype());
                 return {dx, dw1, db1, dw2, db2};
               }
               const Tensor dy = raw::contiguous(b.dy(), dtype);
               if (b.needs(3)) dw2 = raw::matmul(transposed(dy), b.saved(kH), of_weights);
               if (b.needs(4)) db2 = raw::sum_rows(dy, b.saved(kBias2).dtype());
               if (!needs_hidden) return {dx, dw1, db1, dw2, db2};
               const auto [dz, db] = hidden_gradient(dy, b.saved(kW2), b.saved(kZ),
                                                     b.needs(2) ? b.saved(kBias1) : Tensor());
               db1 = db;
               if (b.needs(0)) dx = raw::matmul(dz, b.saved(kW1), dtype);
               if (b.needs(1)) dw1 = raw::matmul(transposed(dz), b.saved(kX), of_weights);
               return {dx, dw1, db1, dw2, db2};
             });
  return view(y, raw::with_last(input.shape(), weight_2.size(0)));
}

}  // namespace weft::ops
