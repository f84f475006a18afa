// What weft.torch calls: kernels together with all that their gradients need, and the gradients,
// for a tape that is PyTorch's. Nothing is recorded here. python/weft/torch has the ops made of
// them.
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/attention/attention.h"
#include "kernels/binary/binary.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/softmax/softmax.h"
#include "python/bindings.h"
#include "python/casters.h"

namespace weft::python {
namespace {

DType statistics_of(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

/// {y, mean, rstd} over the last dimension.
std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const MaybeTensor& weight,
                                              const MaybeTensor& bias, double eps) {
  raw::check_operands("layer_norm", {x, weight, bias}, 1);
  WEFT_CHECK(x.dim() > 0, "layer_norm: expected at least one dimension, got {}", x);
  for (const Tensor& t : {weight.tensor, bias.tensor}) {
    WEFT_CHECK(!t.defined() || t.shape() == Shape{x.size(-1)},
               "layer_norm: expected weight and bias [{}] beside {}, got {}", x.size(-1), x, t);
  }
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  const Tensor y = raw::empty_like(x);
  const Tensor mean = Tensor::empty(rows, statistics_of(x), x.device());
  const Tensor rstd = raw::empty_like(mean);
  if (x.size(-1) > 0) {
    kernels::layer_norm(
        {.x = x, .gamma = weight, .beta = bias, .y = y, .mean = mean, .rstd = rstd, .eps = eps});
  }
  return {y, mean, rstd};
}

/// {dx, dweight, dbias}; the last two are f32, or f64 beside f64.
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& x,
                                                       const MaybeTensor& weight,
                                                       const Tensor& mean, const Tensor& rstd) {
  WEFT_CHECK(dy.shape() == x.shape(), "layer_norm_backward: expected dy as x, {}, got {}", x, dy);
  const Tensor dx = raw::empty_like(x);
  const Tensor dweight = Tensor::zeros({x.size(-1)}, statistics_of(x), x.device());
  const Tensor dbias = Tensor::zeros({x.size(-1)}, statistics_of(x), x.device());
  if (x.size(-1) > 0) {
    kernels::layer_norm({.x = x,
                         .gamma = weight,
                         .mean = mean,
                         .rstd = rstd,
                         .dy = dy,
                         .dx = dx,
                         .dgamma = dweight,
                         .dbeta = dbias});
  }
  return {dx, dweight, dbias};
}

Tensor softmax(const Tensor& x, int axis, bool log) {
  raw::check_floating("softmax", x);
  const Tensor y = raw::empty_like(x);
  kernels::softmax({.x = x, .y = y, .axis = axis, .log = log});
  return y;
}

Tensor softmax_backward(const Tensor& dy, const Tensor& y, int axis, bool log) {
  const Tensor dx = raw::empty_like(y);
  kernels::softmax({.y = y, .dy = dy, .dx = dx, .axis = axis, .log = log});
  return dx;
}

Tensor gelu_backward(const Tensor& dy, const Tensor& x, bool tanh) {
  const Tensor dx = raw::empty_like(x);
  const auto op = tanh ? kernels::BinaryOp::kGeluTanhGrad : kernels::BinaryOp::kGeluErfGrad;
  kernels::binary({.op = op, .a = x, .b = dy, .y = dx});
  return dx;
}

/// [B, T, H, D] storage seen as [B, H, T, D], which a model's next reshape does not copy.
Tensor empty_heads(const Tensor& like) {
  const Shape& s = like.shape();
  return view::transpose(Tensor::empty({s[0], s[2], s[1], s[3]}, like.dtype(), like.device()), 1,
                         2);
}

Tensor with_unit_stride(const Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) <= 1 ? x : raw::contiguous(x);
}

kernels::AttentionProblem attention_problem(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const MaybeTensor& mask, bool causal, double scale) {
  raw::check_operands("scaled_dot_product_attention", {q, k, v}, 3);
  WEFT_CHECK(q.dim() == 4 && k.dim() == 4 && k.shape() == v.shape() && q.size(0) == k.size(0) &&
                 q.size(3) == k.size(3) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
             "scaled_dot_product_attention: q {}, k {} and v {} do not fit together", q, k, v);
  kernels::AttentionProblem p{
      .q = with_unit_stride(q), .k = with_unit_stride(k), .v = with_unit_stride(v)};
  p.scale = scale;
  p.causal = causal;
  if (mask.tensor.defined()) {
    const bool is_added = mask.tensor.dtype() != DType::boolean;
    p.mask = view::expand(is_added ? ops::cast(mask, statistics_of(q)) : mask.tensor,
                          {q.size(0), q.size(1), q.size(2), k.size(2)});
  }
  return p;
}

/// {out, lse} of q, k, v [B, H, T, D].
std::pair<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const MaybeTensor& mask, bool causal, double scale) {
  kernels::AttentionProblem p = attention_problem(q, k, v, mask, causal, scale);
  p.out = empty_heads(q);
  p.lse = Tensor::empty({q.size(0), q.size(1), q.size(2)}, statistics_of(q), q.device());
  kernels::attention(p);
  return {p.out, p.lse};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& dout, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const MaybeTensor& mask, const Tensor& out,
                                                      const Tensor& lse, bool causal,
                                                      double scale) {
  kernels::AttentionProblem p = attention_problem(q, k, v, mask, causal, scale);
  p.out = out, p.lse = lse, p.dout = with_unit_stride(dout);
  p.dq = empty_heads(q), p.dk = empty_heads(k), p.dv = empty_heads(v);
  kernels::attention(p);
  return {p.dq, p.dk, p.dv};
}

using Pair = std::array<int64_t, 2>;

kernels::Conv2dProblem conv2d_problem(const Pair& stride, const Pair& padding, const Pair& dilation,
                                      int64_t groups) {
  kernels::Conv2dProblem p;
  p.stride = stride, p.padding = padding, p.dilation = dilation, p.groups = groups;
  return p;
}

/// {dx, dw, dbias}; those that are not wanted are empty.
std::tuple<Tensor, Tensor, Tensor> conv2d_backward(const Tensor& dy, const Tensor& x,
                                                   const Tensor& w, const Pair& stride,
                                                   const Pair& padding, const Pair& dilation,
                                                   int64_t groups, bool wants_dx, bool wants_dw,
                                                   bool wants_dbias) {
  const auto none = [&] { return Tensor::empty({0}, x.dtype(), x.device()); };
  Tensor dx = none(), dw = none(), dbias = none();
  if (wants_dx) {
    dx = raw::empty_like(x);
    auto p = conv2d_problem(stride, padding, dilation, groups);
    p.w = w, p.dy = dy, p.dx = dx;
    kernels::conv2d(p);
  }
  if (wants_dw || wants_dbias) {
    dw = raw::empty_like(w);
    auto p = conv2d_problem(stride, padding, dilation, groups);
    p.x = x, p.dy = dy, p.dw = dw;
    if (wants_dbias) p.dbias = dbias = Tensor::empty({w.size(0)}, x.dtype(), x.device());
    kernels::conv2d(p);
  }
  return {dx, dw, dbias};
}

}  // namespace

void bind_torch(nb::module_ m) {
  m.def("layer_norm", &layer_norm, "x"_a, "weight"_a.none(), "bias"_a.none(), "eps"_a, Unlocked());
  m.def("layer_norm_backward", &layer_norm_backward, "dy"_a, "x"_a, "weight"_a.none(), "mean"_a,
        "rstd"_a, Unlocked());
  m.def("softmax", &softmax, "x"_a, "axis"_a, "log"_a, Unlocked());
  m.def("softmax_backward", &softmax_backward, "dy"_a, "y"_a, "axis"_a, "log"_a, Unlocked());
  m.def("gelu_backward", &gelu_backward, "dy"_a, "x"_a, "tanh"_a, Unlocked());
  m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "mask"_a.none(), "causal"_a, "scale"_a,
        Unlocked());
  m.def("attention_backward", &attention_backward, "dout"_a, "q"_a, "k"_a, "v"_a, "mask"_a.none(),
        "out"_a, "lse"_a, "causal"_a, "scale"_a, Unlocked());
  m.def("conv2d_backward", &conv2d_backward, "dy"_a, "x"_a, "w"_a, "stride"_a, "padding"_a,
        "dilation"_a, "groups"_a, "wants_dx"_a, "wants_dw"_a, "wants_dbias"_a, Unlocked());
}

}  // namespace weft::python
