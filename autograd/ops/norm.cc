// Normalisation of layers, alone and after a residual addition, of groups, instances and batches.
// Inside an Autocast layer_norm makes a narrow output of an f32 input: the next matrix product
// would cast it anyway, and the rounding is the same one.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/layer_norm/layer_norm.h"

namespace weft::ops {
namespace {

void check(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  raw::check_operands(op, {x, weight, bias}, 1);
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

/// The gradient of s in terms of recorded ops, in f32 or wider: for gradients of gradients.
Tensors composed_backward(const Tensor& narrow_dy, const Tensor& ds, const Tensor& narrow_s,
                          const Tensor& weight, double eps, bool affine_bias) {
  const Tensor dy = raw::widened(narrow_dy), s = raw::widened(narrow_s);
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

/// {dx, dresidual, dweight, dbias} of the saved s, mean, rstd and weight. dx and dresidual are the
/// gradient of the normalised sum in the dtypes of its operands; of one dtype, they are one tensor.
Tensors fused_backward(const Backward& b, const Tensor& dy, const Tensor& ds, bool has_bias,
                       double eps, DType x_dtype, DType residual_dtype) {
  const Tensor s = b.saved(0), mean = b.saved(1), rstd = b.saved(2), weight = b.saved(3);
  if (b.create_graph()) {
    const Tensors g = composed_backward(dy, ds, s, weight, eps, has_bias);
    return {cast(g[0], x_dtype), cast(g[0], residual_dtype), g[1], g[2]};
  }
  const Tensor dx = Tensor::empty(s.shape(), x_dtype, s.device());
  Tensor dresidual, dweight, dbias;
  if (residual_dtype != x_dtype) {
    dresidual = Tensor::empty(s.shape(), residual_dtype, s.device());
  }
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
             .dresidual = dresidual,
             .dgamma = dweight,
             .dbeta = dbias,
             .eps = eps});
  return {dx, dresidual.defined() ? dresidual : dx, dweight, dbias};
}

/// Each group of channels, and all that follows them, normalised as a row of layer_norm, in the
/// dtype of x whatever the Autocast.
Tensor normalized_groups(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                         double eps) {
  const Autocast as_it_comes(DType::f32);
  Shape features = x.shape();
  features.erase(0);
  const Shape rows = {x.size(0) * groups, numel(features) / groups};
  Tensor y = reshape(layer_norm(reshape(x, rows), {}, {}, eps), x.shape());
  Shape per_channel = Shape::filled(x.dim(), 1);
  per_channel[1] = x.size(1);
  if (weight.defined()) y = mul(y, reshape(weight, per_channel));
  if (bias.defined()) y = add(y, reshape(bias, per_channel));
  return cast(y, x.dtype());
}

void check_channels(std::string_view op, const Tensor& x,
                    std::initializer_list<const Tensor*> per_channel) {
  for (const Tensor* t : per_channel) {
    WEFT_CHECK(!t->defined() || t->shape() == Shape{x.size(1)},
               "{}: expected shape [{}], that of the channels of {}, got {}", op, x.size(1), x, *t);
  }
}

/// running = (1 - momentum) running + momentum batch, in place.
void update_running(Tensor& running, const Tensor& batch, double momentum) {
  if (!running.defined()) return;
  raw::copy(add(raw::widened(running) * (1 - momentum), batch, momentum), running);
  running.bump_version();
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check("layer_norm", x, weight, bias);
  raw::check_f64("layer_norm", {x, weight, bias});
  const Normalized n = compute(x, {}, weight, bias, eps);
  return record("layer_norm", {x, weight, bias}, n.y, {x, n.mean, n.rstd, weight},
                [eps, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  const DType dtype = b.saved(0).dtype();
                  const Tensors g = fused_backward(b, b.dy(), {}, has_bias, eps, dtype, dtype);
                  return {g[0], g[2], g[3]};
                });
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& weight, const Tensor& bias, double eps) {
  check("add_layer_norm", x, weight, bias);
  raw::check_operands("add_layer_norm", {x, residual}, 2);
  raw::check_f64("add_layer_norm", {x, residual, weight, bias});
  WEFT_CHECK(x.shape() == residual.shape(), "add_layer_norm: {} and {} differ in shape", x,
             residual);
  const Normalized n = compute(x, residual, weight, bias, eps);
  const Tensors results =
      record("add_layer_norm", {x, residual, weight, bias}, Tensors{n.s, n.y},
             {n.s, n.mean, n.rstd, weight},
             [eps, has_bias = bias.defined(), dx = x.dtype(),
              dr = residual.dtype()](const Backward& b) -> Tensors {
               if (!b.dy(1).defined()) return {cast(b.dy(0), dx), cast(b.dy(0), dr), {}, {}};
               // What nobody needs is not written in a dtype of its own.
               const DType first = b.needs(0) ? dx : dr;
               const Tensors g = fused_backward(b, b.dy(1), b.dy(0), has_bias, eps, first,
                                                b.needs(1) ? dr : first);
               return {b.needs(0) ? g[0] : Tensor(), b.needs(1) ? g[1] : Tensor(), g[2], g[3]};
             });
  return {results[0], results[1]};
}

Tensor rms_norm(const Tensor& input, const Tensor& weight, std::optional<double> eps) {
  check("rms_norm", input, weight, {});
  const Tensor x = autocast_f32(input);
  const Tensor wide = raw::widened(x);
  // PyTorch's: that of the dtype of the arithmetic.
  const double least = eps.value_or(2 * unit_roundoff(wide.dtype()));
  const Tensor y = cast(mul(wide, rsqrt(mean(square(wide), {-1}, true) + least)), x.dtype());
  return weight.defined() ? mul(y, weight) : y;
}

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  raw::check_operands("group_norm", {x, weight, bias}, 1);
  WEFT_CHECK(x.dim() >= 2 && groups > 0 && x.size(1) % groups == 0,
             "group_norm: expected [N, C, ...] with channels for {} groups, got {}", groups, x);
  check_channels("group_norm", x, {&weight, &bias});
  return normalized_groups(autocast_f32(x), groups, weight, bias, eps);
}

Tensor instance_norm(const Tensor& x, Tensor running_mean, Tensor running_var, const Tensor& weight,
                     const Tensor& bias, bool use_input_stats, double momentum, double eps) {
  raw::check_operands("instance_norm", {x, weight, bias, running_mean, running_var}, 1);
  WEFT_CHECK(x.dim() >= 3 && x.size(1) > 0, "instance_norm: expected [N, C, ...], got {}", x);
  check_channels("instance_norm", x, {&running_mean, &running_var, &weight, &bias});
  if (!use_input_stats) {
    return batch_norm(x, weight, bias, running_mean, running_var, false, momentum, eps);
  }
  Shape instance;
  int64_t elements = 1;
  for (int d = 2; d < x.dim(); ++d) {
    instance.push_back(d);
    elements *= x.shape()[d];
  }
  WEFT_CHECK(elements > 1 || x.numel() == 0,
             "instance_norm: needs more than one value per channel, got {}", x);
  // An empty batch has no statistics.
  if (x.numel() > 0 && (running_mean.defined() || running_var.defined())) {
    const NoGrad guard;
    const Tensor wide = raw::widened(x);
    update_running(running_mean, mean(mean(wide, instance), {0}), momentum);
    update_running(running_var, mean(var(wide, instance), {0}), momentum);
  }
  return normalized_groups(x, x.size(1), weight, bias, eps);
}

Tensor batch_norm(const Tensor& x, const Tensor& scale, const Tensor& shift, Tensor running_mean,
                  Tensor running_var, bool training, double momentum, double eps) {
  raw::check_operands("batch_norm", {x, scale, shift, running_mean, running_var}, 1);
  WEFT_CHECK(x.dim() >= 2, "batch_norm: expected [N, C, ...], got {}", x);
  const Shape channels = {x.size(1)};
  for (const Tensor* t :
       std::initializer_list<const Tensor*>{&scale, &shift, &running_mean, &running_var}) {
    WEFT_CHECK(!t->defined() || t->shape() == channels,
               "batch_norm: expected shape {} for {}, got {}", channels, x, *t);
  }
  const int64_t elements = x.size(1) > 0 ? x.numel() / x.size(1) : 0;
  WEFT_CHECK(!training || elements > 1,
             "batch_norm: training needs more than one value per channel, got {}", x);
  WEFT_CHECK(running_mean.defined() == running_var.defined(),
             "batch_norm: expected a running mean and a running variance or neither, got {} and {}",
             running_mean, running_var);
  WEFT_CHECK(training || running_mean.defined(), "batch_norm: evaluation needs running statistics");
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor weight = scale.defined() ? contiguous(cast(scale, dtype)) : scale;
  const Tensor bias = shift.defined() ? contiguous(cast(shift, dtype)) : shift;
  // Kernels keep statistics in that dtype; narrow ones belong to narrow models.
  const auto widened = [&](const Tensor& t) { return t.defined() ? raw::contiguous(t, dtype) : t; };
  const Tensor wide_mean = widened(running_mean), wide_var = widened(running_var);
  const Tensor mean = training ? Tensor::empty(channels, dtype, x.device()) : wide_mean;
  const Tensor variance = training ? Tensor::empty(channels, dtype, x.device()) : wide_var;
  Tensor y = raw::empty_like(x);
  kernels::batch_norm({.x = x,
                       .weight = weight,
                       .bias = bias,
                       .mean = mean,
                       .variance = variance,
                       .y = y,
                       .eps = eps,
                       .training = training});
  if (training && running_mean.defined()) {
    kernels::update_running_statistics(mean, variance, elements, momentum, wide_mean, wide_var);
    if (wide_mean.raw() != running_mean.raw()) raw::copy(wide_mean, running_mean);
    if (wide_var.raw() != running_var.raw()) raw::copy(wide_var, running_var);
    running_mean.bump_version();
    running_var.bump_version();
  }
  return record("batch_norm", {x, weight, bias}, y, {x, weight, mean, variance},
                [=, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor x = b.saved(0), weight = b.saved(1);
                  Tensor dx = raw::empty_like(x);
                  Tensor dweight, dbias;
                  if (weight.defined()) dweight = raw::empty_like(weight);
                  if (has_bias) dbias = Tensor::empty(channels, dtype, x.device());
                  kernels::batch_norm({.x = x,
                                       .weight = weight,
                                       .mean = b.saved(2),
                                       .variance = b.saved(3),
                                       .dy = cast(b.dy(), x.dtype()),
                                       .dx = dx,
                                       .dweight = dweight,
                                       .dbias = dbias,
                                       .eps = eps,
                                       .training = training});
                  return {dx, dweight, dbias};
                });
}

}  // namespace weft::ops
