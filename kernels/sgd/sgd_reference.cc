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
  const T share = static_cast<T>(1 - s.dampening);
  double norm = 0, coefficient = 1;
  if (s.gate.norm.defined()) norm = s.gate.norm.item();
  if (s.gate.max_norm > 0)
    coefficient = std::isnan(norm) ? NAN : std::min(1.0, s.gate.max_norm / (norm + 1e-6));
  const bool is_closed = (s.gate.skip.defined() && s.gate.skip.item() != 0) ||
                         (s.gate.needs_finite && !std::isfinite(norm));
  const std::vector<double> norms =
      s.layer_norms.defined() ? s.layer_norms.to_vector() : std::vector<double>();
  std::vector<Expected> result;
  for (size_t t = 0; t < s.parameters.size(); ++t) {
    std::vector<double> p = s.parameters[t].to_vector(), g = s.gradients[t].to_vector();
    auto scale =
        static_cast<T>(static_cast<double>(static_cast<T>(s.gradient_scale)) * coefficient);
    auto decay = static_cast<T>(s.weight_decay);
    const double of_p = norms.empty() ? 0 : norms[t];
    const double of_g = norms.empty() ? 0 : norms[s.parameters.size() + t];
    if (of_p != 0 && of_g != 0) {
      const double exact = s.gradient_scale * coefficient;
      const double rate = s.trust_coefficient * of_p / (exact * of_g + s.weight_decay * of_p);
      scale = static_cast<T>(rate * exact);
      decay = static_cast<T>(rate * s.weight_decay);
    }
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
    const Tensor narrow = s.narrow.empty() ? Tensor() : s.narrow[t];
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

std::vector<Expected> sgd_reference(const SgdProblem& problem) {
  return problem.dtype() == DType::f64 ? run<double>(problem) : run<float>(problem);
}

}  // namespace weft::kernels
