// Plain loops in f64. Bounds, with u the unit roundoff of the arithmetic, C terms in a row, m the
// row's maximum and an exp of relative error 2u: the sum of exponentials carries gamma_{C+8} and
// the error of the arguments, at most max|x - m| u; so does its logarithm, absolutely. The loss
// adds gamma_{C+8} times the magnitudes of its terms. Backward sees lse as forward rounded it, and
// the argument logits - lse carries one more rounding of its magnitude (numerics/error_bounds.h).
#include <cmath>

#include "kernels/cross_entropy/cross_entropy.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

struct Output {
  Expected expected;
  DType dtype;

  explicit Output(const Tensor& t)
      : expected{std::vector<double>(t.numel()), std::vector<double>(t.numel())},
        dtype(t.dtype()) {}
  void put(int64_t i, double value, double error) {
    expected.values[i] = value;
    expected.bounds[i] =
        std::isfinite(value) ? error + numerics::rounding_error(std::abs(value) + error, dtype) : 0;
  }
};

}  // namespace

std::vector<Expected> cross_entropy_reference(const CrossEntropyProblem& p) {
  const int64_t rows = p.logits.shape()[0], classes = p.logits.shape()[1];
  const std::vector<double> logits = p.logits.to_vector(), labels = p.labels.to_vector();
  // In f64 the reference errs as much as the variant: twice the unit roundoff.
  const double u = p.dtype() == DType::f64 ? 0x1p-52 : 0x1p-24;
  const double row_error = numerics::gamma(classes + 8.0, u);
  const double smoothing = p.label_smoothing;
  std::vector<double> target(classes);
  const auto set_target = [&](int64_t row) {  // false when the row is ignored
    if (p.hard() && static_cast<int64_t>(labels[row]) == p.ignore_index) return false;
    for (int64_t c = 0; c < classes; ++c) {
      const double label = p.hard() ? c == labels[row] : labels[row * classes + c];
      target[c] = (1 - smoothing) * label + smoothing / classes;
    }
    return true;
  };
  if (p.backward()) {
    const std::vector<double> lse = p.lse.to_vector(), dloss = p.dloss.to_vector();
    Output dlogits(p.dlogits);
    for (int64_t r = 0; r < rows; ++r) {
      const bool counts = set_target(r);
      double total = 0, magnitude = 0;
      for (double t : target) {
        total += t;
        magnitude += std::abs(t);
      }
      for (int64_t c = 0; c < classes; ++c) {
        const int64_t at = r * classes + c;
        if (!counts) {
          dlogits.put(at, 0, 0);
          continue;
        }
        const double argument = logits[at] - lse[r], softmax = std::exp(argument);
        // Below float's normal range the exponential may flush to zero.
        const double flushed = u > 0x1p-30 ? 0x1p-126 : 0;
        const double softmax_error = softmax * (std::abs(argument) + 4) * u + flushed;
        const double error = softmax_error * magnitude + softmax * row_error * magnitude +
                             4 * u * std::abs(target[c]);
        dlogits.put(at, (softmax * total - target[c]) * dloss[r], error * std::abs(dloss[r]));
      }
    }
    return {dlogits.expected};
  }
  Output loss(p.loss);
  Expected lse{std::vector<double>(rows), std::vector<double>(rows)};
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = logits.data() + r * classes;
    double max = -INFINITY, sum = 0, spread = 0;
    for (int64_t c = 0; c < classes; ++c) max = std::max(max, x[c]);
    for (int64_t c = 0; c < classes; ++c) {
      sum += std::exp(x[c] - max);
      if (std::isfinite(x[c])) spread = std::max(spread, max - x[c]);
    }
    const double log_sum = std::log(sum);
    const double log_sum_error = row_error + spread * u + 4 * u * log_sum;
    lse.values[r] = max + log_sum;
    lse.bounds[r] =
        std::isfinite(lse.values[r]) ? log_sum_error + 2 * u * (std::abs(max) + log_sum) : 0;
    if (!set_target(r)) {
      loss.put(r, 0, 0);
      continue;
    }
    double value = 0, error = 0;
    for (int64_t c = 0; c < classes; ++c) {
      if (p.hard() && target[c] == 0) continue;
      value += target[c] * (log_sum - (x[c] - max));
      error += std::abs(target[c]) * (log_sum_error + row_error * (log_sum + (max - x[c])));
    }
    loss.put(r, value, error);
  }
  std::vector<Expected> result = {loss.expected};
  if (p.lse.defined()) result.push_back(lse);
  return result;
}

}  // namespace weft::kernels
