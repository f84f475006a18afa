// Layer normalisation, alone and after a residual addition. Inside an Autocast an f32 input gives a
// narrow output: the next matrix product would cast it anyway, and the rounding is the same one.
#include "kernels/layer_norm/layer_norm.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

void check(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  raw::check_floating(op, x);
  raw::check_devices(op, {x, weight, bias});
  WEFT_CHECK(x.dim() > 0, "{}: expected at least one dimension, got {}", op, x);
  for (const Tensor* t : {&weight, &bias}) {
    WEFT_CHECK(!t->defined() || t->shape() == Shape{x.size(-1)},
               "{}: weight and bias must have shape [{}], that of the last dimension of {}, got {}",
               op, x.size(-1), x, *t);
  }
}

/// A width of 0 leaves nothing to compute.
void normalize(const kernels::LayerNormProblem& problem) {
  if (problem.x.size(-1) > 0) kernels::layer_norm(problem);
}

/// The gradient of s in terms of recorded ops: for gradients of gradients.
Tensors composed_backward(const Tensor& dy, const Tensor& ds, const Tensor& s, const Tensor& weight,
                          double eps, bool affine_bias) {
  const Tensor mu = mean(s, {-1}, true);
  const Tensor centred = sub(s, mu);
  const Tensor rstd = rsqrt(mean(square(centred), {-1}, true) + eps);
  const Tensor h = mul(centred, rstd);
  const Tensor g = weight.defined() ? mul(dy, weight) : dy;
  const Tensor inner = sub(sub(g, mean(g, {-1}, true)), mul(h, mean(mul(g, h), {-1}, true)));
  Tensor dx = mul(rstd, inner);
  if (ds.defined()) dx = add(dx, ds);
  Tensor dweight, dbias;
  if (weight.defined()) dweight = sum_to(mul(dy, h), weight.shape());
  if (affine_bias) dbias = sum_to(dy, {s.size(-1)});
  return {dx, dweight, dbias};
}

struct Normalized {
  Tensor s, y, mean, rstd;
};

Normalized compute(const Tensor& x, const Tensor& residual, const Tensor& weight,
                   const Tensor& bias, double eps) {
  Normalized out;
  const DType stream = residual.defined() ? promote(x.dtype(), residual.dtype()) : x.dtype();
  const DType low = autocast_dtype();
  const DType narrow = low == DType::f32 || stream == DType::f64 ? stream : low;
  const DType statistics = stream == DType::f64 ? DType::f64 : DType::f32;
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  out.y = Tensor::empty(x.shape(), narrow, x.device());
  out.mean = Tensor::empty(rows, statistics, x.device());
  out.rstd = Tensor::empty(rows, statistics, x.device());
  if (residual.defined()) out.s = Tensor::empty(x.shape(), stream, x.device());
  normalize({.x = x,
             .residual = residual,
             .gamma = weight,
             .beta = bias,
             .sum = out.s,
             .y = out.y,
             .mean = out.mean,
             .rstd = out.rstd,
             .eps = eps});
  if (!residual.defined()) out.s = x;
  return out;
}

/// {ds, dweight, dbias} of the saved s, mean, rstd and weight; ds is the gradient of the normalised
/// sum, in its dtype.
Tensors fused_backward(const Backward& b, const Tensor& dy, const Tensor& ds, bool has_bias,
                       double eps) {
  const Tensor s = b.saved(0), mean = b.saved(1), rstd = b.saved(2), weight = b.saved(3);
  if (b.create_graph()) return composed_backward(dy, ds, s, weight, eps, has_bias);
  Tensor dx = raw::empty_like(s);
  Tensor dweight, dbias;
  if (weight.defined()) dweight = Tensor::empty(weight.shape(), weight.dtype(), s.device());
  if (has_bias) {
    const DType dtype = weight.defined() ? weight.dtype() : s.dtype();
    dbias = Tensor::empty({s.size(-1)}, dtype, s.device());
  }
  normalize({.x = s,
             .gamma = weight,
             .mean = mean,
             .rstd = rstd,
             .dy = dy,
             .ds = ds,
             .dx = dx,
             .dgamma = dweight,
             .dbeta = dbias,
             .eps = eps});
  return {dx, dweight, dbias};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check("layer_norm", x, weight, bias);
  const Normalized n = compute(x, {}, weight, bias, eps);
  return record("layer_norm", {x, weight, bias}, n.y, {x, n.mean, n.rstd, weight},
                [eps, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  return fused_backward(b, b.dy(), {}, has_bias, eps);
                });
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& weight, const Tensor& bias, double eps) {
  check("add_layer_norm", x, weight, bias);
  raw::check_devices("add_layer_norm", {x, residual});
  WEFT_CHECK(x.shape() == residual.shape(), "add_layer_norm: {} and {} differ in shape", x,
             residual);
  const Normalized n = compute(x, residual, weight, bias, eps);
  const Tensors results = record("add_layer_norm", {x, residual, weight, bias}, Tensors{n.s, n.y},
                                 {n.s, n.mean, n.rstd, weight},
                                 [eps, has_bias = bias.defined(), dx = x.dtype(),
                                  dr = residual.dtype()](const Backward& b) -> Tensors {
                                   if (!b.dy(1).defined())
                                     return {cast(b.dy(0), dx), cast(b.dy(0), dr), {}, {}};
                                   const Tensors g =
                                       fused_backward(b, b.dy(1), b.dy(0), has_bias, eps);
                                   return {b.needs(0) ? cast(g[0], dx) : Tensor(),
                                           b.needs(1) ? cast(g[0], dr) : Tensor(), g[1], g[2]};
                                 });
  return {results[0], results[1]};
}

}  // namespace weft::ops
