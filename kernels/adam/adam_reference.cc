// A plain loop in f32 (f64), rounded to the parameters' dtype at the end, because the bits
// themselves are specified: the bound is 0.
#include <algorithm>
#include <cmath>

#include "kernels/adam/adam.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

template <class T>
std::vector<Expected> run(const AdamProblem& a) {
  const double step = static_cast<double>(a.step);
  const double correction1 = 1 - std::pow(a.beta1, step);
  const double correction2 = 1 - std::pow(a.beta2, step);
  const T decay = static_cast<T>(1 - a.lr * a.weight_decay);
  const T weight1 = static_cast<T>(1 - a.beta1), weight2 = static_cast<T>(1 - a.beta2);
  const T beta1 = static_cast<T>(a.beta1), beta2 = static_cast<T>(a.beta2);
  const T step_size = static_cast<T>(a.lr / correction1);
  double norm = 0, coefficient = 1;
  if (a.gate.norm.defined()) norm = a.gate.norm.item();
  if (a.gate.max_norm > 0)
    coefficient = std::isnan(norm) ? NAN : std::min(1.0, a.gate.max_norm / (norm + 1e-6));
  const bool is_closed = (a.gate.skip.defined() && a.gate.skip.item() != 0) ||
                         (a.gate.needs_finite && !std::isfinite(norm));
  const auto scale =
      static_cast<T>(static_cast<double>(static_cast<T>(a.gradient_scale)) * coefficient);
  const T root_correction2 = static_cast<T>(std::sqrt(correction2)), eps = static_cast<T>(a.eps);
  std::vector<Expected> result;
  for (size_t t = 0; t < a.parameters.size(); ++t) {
    std::vector<double> p = a.parameters[t].to_vector(), g = a.gradients[t].to_vector();
    std::vector<double> m = a.m[t].to_vector(), v = a.v[t].to_vector();
    for (size_t i = 0; i < p.size(); ++i) {
      T pi = static_cast<T>(p[i]), gi = static_cast<T>(g[i]);
      T mi = static_cast<T>(m[i]), vi = static_cast<T>(v[i]);
      if (is_closed) break;
      if (scale != 1) gi = gi * scale;
      if (a.weight_decay != 0 && a.decoupled) pi = pi * decay;
      if (a.weight_decay != 0 && !a.decoupled) gi = gi + static_cast<T>(a.weight_decay) * pi;
      mi = a.beta1 > 0.5 ? mi + weight1 * (gi - mi) : gi - (gi - mi) * beta1;
      vi = vi * beta2 + (weight2 * gi) * gi;
      pi = pi - (step_size * mi) / (std::sqrt(vi) / root_correction2 + eps);
      p[i] = numerics::round_to(pi, a.dtype());
      m[i] = numerics::round_to(mi, a.dtype());
      v[i] = numerics::round_to(vi, a.dtype());
    }
    for (const std::vector<double>& values : {p, m, v}) {
      result.push_back({values, std::vector<double>(values.size())});
    }
    const Tensor narrow = a.narrow.empty() ? Tensor() : a.narrow[t];
    if (!narrow.defined()) continue;
    std::vector<double> rounded = narrow.to_vector();
    for (size_t i = 0; i < p.size() && !is_closed; ++i) {
      rounded[i] = numerics::round_to(p[i], narrow.dtype());
    }
    result.push_back({rounded, std::vector<double>(rounded.size())});
  }
  return result;
}

}  // namespace

std::vector<Expected> adam_reference(const AdamProblem& problem) {
  return problem.dtype() == DType::f64 ? run<double>(problem) : run<float>(problem);
}

}  // namespace weft::kernels
