#include "optim/clip.h"

#include <cmath>

#include "autograd/ops.h"
#include "kernels/multi_tensor/step_gate.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "optim/gradient_owner.h"

namespace weft::optim {
namespace {

Tensors gradients_of(const Tensors& parameters) {
  Tensors gradients;
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    gradient.raw();  // memory that comes and goes is here before threads share it
    gradients.push_back(gradient);
  }
  return gradients;
}

}  // namespace

Tensors contiguous_gradients(const Tensors& parameters) {
  const NoGrad guard;
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = parameter.grad();
    if (gradient.defined() && !gradient.is_contiguous()) parameter.set_grad(ops::clone(gradient));
  }
  return gradients_of(parameters);
}

Tensor unread_norm_here(const Tensors& parameters) {
  const Tensors gradients = gradients_of(parameters);
  if (gradients.empty()) return Tensor::scalar(0, DType::f64);
  const Tensor norm = Tensor::empty({}, DType::f64, gradients[0].device());
  kernels::multi_tensor_norm({.tensors = gradients, .norm = norm});
  return norm;
}

double grad_norm_here(const Tensors& parameters) { return unread_norm_here(parameters).item(); }

Tensor unread_norm(const Tensors& parameters) {
  const std::shared_ptr<GradientOwner> owner = gradient_owner(parameters);
  if (!owner) return unread_norm_here(parameters);
  const Tensors mine = owner->complete(parameters);
  return mine.empty() ? Tensor::scalar(0, DType::f64) : owner->norm(mine);
}

double grad_norm(const Tensors& parameters) { return unread_norm(parameters).item(); }

double clip_coefficient(double norm, double max_norm) {
  WEFT_CHECK(max_norm >= 0, "clip_grad_norm: max_norm must not be negative, got {}", max_norm);
  return kernels::clip_coefficient(norm, max_norm);
}

double clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite) {
  const std::shared_ptr<GradientOwner> owner = gradient_owner(parameters);
  const Tensors mine = owner ? owner->complete(parameters) : parameters;
  if (owner && mine.empty()) return 0;
  const double norm = owner ? owner->norm(mine).item() : grad_norm_here(mine);
  const double coefficient = clip_coefficient(norm, max_norm);
  WEFT_CHECK(std::isfinite(norm) || !error_if_nonfinite,
             "clip_grad_norm: the norm of the gradients is {}", norm);
  if (coefficient == 1) return norm;
  const Tensors contiguous = contiguous_gradients(mine);
  kernels::multi_tensor_scale({.tensors = contiguous, .factor = coefficient});
  for (const Tensor& gradient : contiguous) gradient.bump_version();
  return norm;
}

void clip_grad_value(const Tensors& parameters, double limit) {
  WEFT_CHECK(limit >= 0, "clip_grad_value: the limit must not be negative, got {}", limit);
  const NoGrad guard;
  const std::shared_ptr<GradientOwner> owner = gradient_owner(parameters);
  for (Tensor& gradient : contiguous_gradients(owner ? owner->complete(parameters) : parameters)) {
    ops::copy_(gradient, ops::clamp(gradient, -limit, limit));
  }
}

}  // namespace weft::optim
