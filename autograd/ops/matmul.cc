// Matrix products. Inside an Autocast the operands are narrow; the gradient of a weight leaves the
// product in the weight's own dtype, so that f32 master weights get f32 gradients without a cast.
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/gemm/gemm.h"

namespace weft::ops {
namespace {

Tensor transposed(const Tensor& x) { return view::transpose(x, -1, -2); }

/// a [..., M, K] b [..., K, N] with equal batch dimensions.
Tensor batched(const Tensor& a, const Tensor& b) {
  Tensor c = raw::matmul(a, b, a.dtype());
  return record("matmul", {a, b}, c, {a, b}, [](const Backward& g) -> Tensors {
    const Tensor a = g.saved(0), b = g.saved(1);
    const Tensor dc = cast(g.dy(), a.dtype());
    return {g.needs(0) ? matmul(dc, transpose(b, -1, -2)) : Tensor(),
            g.needs(1) ? matmul(transpose(a, -1, -2), dc) : Tensor()};
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

}  // namespace

Tensor matmul(const Tensor& first, const Tensor& second) {
  raw::check_floating("matmul", first);
  raw::check_floating("matmul", second);
  raw::check_devices("matmul", {first, second});
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
  if (b.dim() == 2 && a.dim() > 2) {
    Shape shape = a.shape();
    shape[shape.size() - 1] = b.size(1);
    c = reshape(batched(reshape(a, raw::as_rows(a)), b), shape);
  } else {
    const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "matmul");
    c = batched(expand_batch(a, batch), expand_batch(b, batch));
  }
  if (column) c = squeeze(c, -1);
  if (row) c = squeeze(c, column ? -1 : -2);
  return c;
}

namespace {

/// gelu'(z) dy
Tensor gelu_gradient(const Tensor& z, const Tensor& dy) {
  const Tensor dz = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  kernels::binary({.op = kernels::BinaryOp::kGeluErfGrad, .a = z, .b = dy, .y = dz});
  return dz;
}

/// linear_with on fp8 codes; x, bias and results are of `dtype`.
Tensor fp8_linear(std::string_view op, const Tensor& input, const Tensor& weight,
                  const Tensor& bias, bool with_gelu, DType dtype, Fp8Scaling& scaling) {
  using Role = Fp8Scaling::Role;
  const Tensor x = reshape(cast(input, dtype), raw::as_rows(input));
  const Fp8Scaling::Quantized qx = scaling.quantize(weight, Role::kInput, x);
  const Fp8Scaling::Quantized qw = scaling.quantize(weight, Role::kWeight, weight);
  Shape shape = input.shape();
  shape[shape.size() - 1] = weight.size(0);
  Tensor y = Tensor::empty({x.size(0), weight.size(0)}, dtype, x.device());
  Tensor z;  // the pre-activation, kept only for backward
  kernels::GemmProblem problem{.a = qx.codes,
                               .b = transposed(qw.codes),
                               .c = y,
                               .bias = bias,
                               .scale = qx.inverse_scale * qw.inverse_scale};
  if (with_gelu) {
    z = Tensor::empty(y.shape(), dtype, x.device());
    problem.epilogue = kernels::Epilogue::kGelu;
    problem.aux = z;
  }
  kernels::gemm(problem);
  y = record(
      op, {x, weight, bias}, y, {qx.codes, qw.codes, weight, bias, z},
      [=, &scaling, x_scale = qx.inverse_scale,
       w_scale = qw.inverse_scale](const Backward& b) -> Tensors {
        b.require_no_graph();
        const Tensor x8 = b.saved(0), w8 = b.saved(1);
        Tensor dz = raw::contiguous(b.dy(), dtype);
        if (with_gelu) dz = gelu_gradient(b.saved(4), dz);
        const Fp8Scaling::Quantized q = scaling.quantize(weight, Role::kGradient, dz);
        Tensor dx, dw, db;
        if (b.needs(0)) {
          dx = Tensor::empty(x8.shape(), dtype, dz.device());
          kernels::gemm({.a = q.codes, .b = w8, .c = dx, .scale = q.inverse_scale * w_scale});
        }
        if (b.needs(1)) {
          dw = Tensor::empty(weight.shape(), weight.dtype(), dz.device());
          kernels::gemm(
              {.a = transposed(q.codes), .b = x8, .c = dw, .scale = q.inverse_scale * x_scale});
        }
        if (b.needs(2)) db = raw::sum_rows(dz, b.saved(3).dtype());
        return {dx, dw, db};
      });
  return view(y, shape);
}

Tensor linear_with(std::string_view op, const Tensor& input, const Tensor& weight,
                   const Tensor& bias, bool with_gelu) {
  raw::check_floating(op, input);
  raw::check_floating(op, weight);
  raw::check_devices(op, {input, weight, bias});
  WEFT_CHECK(weight.dim() == 2 && input.dim() > 0 && input.size(-1) == weight.size(1),
             "{}: input {} does not fit weight {}: expected a last dimension of {}", op, input,
             weight, weight.dim() == 2 ? weight.size(1) : -1);
  WEFT_CHECK(!bias.defined() || bias.shape() == Shape{weight.size(0)},
             "{}: expected a bias of shape [{}], got {}", op, weight.size(0), bias);
  const DType dtype = autocast_products(input, weight);
  if (Fp8Scaling* fp8 = fp8_in_force(); fp8 && dtype != DType::f64) {
    return fp8_linear(op, input, weight, bias, with_gelu, dtype, *fp8);
  }
  const Tensor x = reshape(cast(input, dtype), raw::as_rows(input));
  const Tensor w = autocast_weight(weight, dtype);
  Shape shape = input.shape();
  shape[shape.size() - 1] = weight.size(0);
  Tensor y = Tensor::empty({x.size(0), weight.size(0)}, dtype, x.device());
  Tensor z;  // the pre-activation, kept only for backward
  kernels::GemmProblem problem{.a = x, .b = transposed(w), .c = y, .bias = bias};
  if (with_gelu) {
    z = Tensor::empty(y.shape(), dtype, x.device());
    problem.epilogue = kernels::Epilogue::kGelu;
    problem.aux = z;
  }
  kernels::gemm(problem);
  y = record(op, {x, weight, bias}, y, {x, w, weight, bias, z},
             [=, op = std::string(op)](const Backward& b) -> Tensors {
               const Tensor x = b.saved(0), weight = b.saved(2), bias = b.saved(3);
               Tensor dx, dw, db;
               if (b.create_graph()) {
                 Tensor dy = b.dy();
                 const Tensor wide = cast(weight, x.dtype());
                 if (with_gelu) {
                   Tensor z = matmul(x, transpose(wide, 0, 1));
                   if (bias.defined()) z = add(z, bias);
                   Tensor g = gelu(z);
                   dy = grad({g}, {z}, {dy}, {.create_graph = true})[0];
                 }
                 if (b.needs(0)) dx = matmul(dy, wide);
                 if (b.needs(1)) dw = cast(matmul(transpose(dy, 0, 1), x), weight.dtype());
                 if (b.needs(2)) db = cast(sum(dy, {0}), bias.dtype());
                 return {dx, dw, db};
               }
               Tensor dz = raw::contiguous(b.dy(), x.dtype());
               if (with_gelu) dz = gelu_gradient(b.saved(4), dz);
               if (b.needs(0)) dx = raw::matmul(dz, b.saved(1), x.dtype());
               if (b.needs(1)) dw = raw::matmul(transposed(dz), x, weight.dtype());
               if (b.needs(2)) db = raw::sum_rows(dz, bias.dtype());
               return {dx, dw, db};
             });
  return view(y, shape);
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_with("linear", x, weight, bias, false);
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_with("linear_gelu", x, weight, bias, true);
}

}  // namespace weft::ops
