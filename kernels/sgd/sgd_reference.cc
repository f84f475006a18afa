// A plain loop in f32 (f64), rounded to the parameters' dtype at the end, because the bits
// themselves are specified: the bound is 0.
#include <algorithm>
#include <cmath>

#include "kernels/sgd/sgd.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

template <class T>
std::vector<Expected> run(const SgdProblem& s) {
  const T lr = static_cast<T>(s.lr), momentum = static_cast<T>(s.momentum);
  const T share = static_cast<T>(1 - s.dampening), decay = static_cast<T>(s.weight_decay);
  double norm = 0, coefficient = 1;
  if (s.norm.defined()) norm = s.norm.item();
  if (s.max_norm > 0)
    coefficient = std::isnan(norm) ? NAN : std::min(1.0, s.max_norm / (norm + 1e-6));
  const bool is_closed =
      (s.skip.defined() && s.skip.item() != 0) || (s.needs_finite && !std::isfinite(norm));
  const auto scale =
      static_cast<T>(static_cast<double>(static_cast<T>(s.gradient_scale)) * coefficient);
  std::vector<Expected> result;
  for (size_t t = 0; t < s.parameters.size(); ++t) {
    std::vector<double> p = s.parameters[t].to_vector(), g = s.gradients[t].to_vector();
    std::vector<double> b;
    if (s.momentum != 0) b = s.buffers[t].to_vector();
    for (size_t i = 0; i < p.size(); ++i) {
      T pi = static_cast<T>(p[i]), gi = static_cast<T>(g[i]);
      if (is_closed) break;
      if (scale != 1) gi = gi * scale;
      if (s.weight_decay != 0) gi = gi + decay * pi;
      if (s.momentum != 0) {
        const T bi = s.first_step ? gi : static_cast<T>(b[i]) * momentum + share * gi;
        gi = s.nesterov ? gi + momentum * bi : bi;
        b[i] = numerics::round_to(bi, s.dtype());
      }
      p[i] = numerics::round_to(pi - lr * gi, s.dtype());
    }
    result.push_back({p, std::vector<double>(p.size())});
    if (s.momentum != 0) result.push_back({b, std::vector<double>(b.size())});
  }
  return result;
}

}  // namespace

std::vector<Expected> sgd_reference(const SgdProblem& problem) {
  return problem.dtype() == DType::f64 ? run<double>(problem) : run<float>(problem);
}

}  // namespace weft::kernels
