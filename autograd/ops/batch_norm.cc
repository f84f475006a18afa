#include "kernels/batch_norm/batch_norm.h"

#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {

Tensor batch_norm(const Tensor& x, const Tensor& scale, const Tensor& shift, Tensor running_mean,
                  Tensor running_var, bool training, double momentum, double eps) {
  raw::check_floating("batch_norm", x);
  raw::check_devices("batch_norm", {x, scale, shift, running_mean, running_var});
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
  WEFT_CHECK(training || (running_mean.defined() && running_var.defined()),
             "batch_norm: evaluation needs running statistics");
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor weight = scale.defined() ? cast(scale, dtype) : scale;
  const Tensor bias = shift.defined() ? cast(shift, dtype) : shift;
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
