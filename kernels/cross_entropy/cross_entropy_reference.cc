// Plain loops in f64. Bounds, with u the unit roundoff of the arithmetic, C terms in a row, m the
// row's maximum and an exp of relative error 2u: the sum of exponentials carries gamma_{C+8} and
// the error of the arguments, at most max|x - m| u; so does its logarithm, absolutely. The loss
// adds gamma_{C+8} times the magnitudes of its terms. Backward sees lse as forward rounded it, and
// the argument logits - lse carries one more rounding of its magnitude (numerics/error_bounds.h).
// Of both in one, lse is the exact one here: what the variant's own may be off multiplies exp.
#include <cmath>

#include "kernels/cross_entropy/cross_entropy.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

/// The targets of a problem's rows, and what every bound takes from it.
struct Rows {
  const CrossEntropyProblem& p;
  const int64_t count = p.logits.size(0), classes = p.logits.size(1);
  // In f64 the reference errs as much as the variant: twice the unit roundoff.
  const double u = p.dtype() == DType::f64 ? 0x1p-52 : 0x1p-24;
  const double row_error = numerics::gamma(static_cast<double>(classes) + 8, u);
  const std::vector<double> logits = p.logits.to_vector(), labels = p.labels.to_vector();
  std::vector<double> target = std::vector<double>(classes);

  /// Sets `target`; false when the row is ignored.
  bool set_target(int64_t row) {
    if (p.hard() && static_cast<int64_t>(labels[row]) == p.ignore_index) return false;
    const double smoothing = p.label_smoothing;
    for (int64_t c = 0; c < classes; ++c) {
      const double label = p.hard() ? c == labels[row] : labels[row * classes + c];
      target[c] = (1 - smoothing) * label + smoothing / static_cast<double>(classes);
    }
    return true;
  }
};

/// The loss; lse is an output, too.
Expected forward(Rows& rows, Expected& lse) {
  const double u = rows.u;
  Expected loss;
  for (int64_t r = 0; r < rows.count; ++r) {
    const double* x = rows.logits.data() + r * rows.classes;
    double max = -INFINITY, sum = 0, spread = 0;
    for (int64_t c = 0; c < rows.classes; ++c) max = std::max(max, x[c]);
    for (int64_t c = 0; c < rows.classes; ++c) {
      sum += std::exp(x[c] - max);
      if (std::isfinite(x[c])) spread = std::max(spread, max - x[c]);
    }
    const double log_sum = std::log(sum);
    const double log_sum_error = rows.row_error + spread * u + 4 * u * log_sum;
    lse.put(r, max + log_sum,
            std::isfinite(max + log_sum) ? log_sum_error + 2 * u * (std::abs(max) + log_sum) : 0);
    const bool counts = rows.set_target(r);
    double value = 0, error = 0;
    for (int64_t c = 0; counts && c < rows.classes; ++c) {
      const double target = rows.target[c];
      if (rows.p.hard() && target == 0) continue;
      value += target * (log_sum - (x[c] - max));
      error += std::abs(target) * (log_sum_error + rows.row_error * (log_sum + (max - x[c])));
    }
    loss.add(value, numerics::stored_bound(value, error, rows.p.loss.dtype()));
  }
  return loss;
}

/// The bounds of lse: how far the variant's may lie from these values.
Expected backward(Rows& rows, const Expected& lse) {
  const double u = rows.u;
  const std::vector<double> dloss = rows.p.dloss.to_vector();
  Expected dlogits;
  for (int64_t r = 0; r < rows.count; ++r) {
    const bool counts = rows.set_target(r);
    double total = 0, magnitude = 0;
    for (double t : rows.target) {
      total += t;
      magnitude += std::abs(t);
    }
    for (int64_t c = 0; c < rows.classes; ++c) {
      const int64_t at = r * rows.classes + c;
      if (!counts) {
        dlogits.add(0, 0);
        continue;
      }
      const double argument = rows.logits[at] - lse.values[r], softmax = std::exp(argument);
      // Below float's normal range the exponential may flush to zero.
      const double flushed = u > 0x1p-30 ? 0x1p-126 : 0;
      const double softmax_error =
          softmax * ((std::abs(argument) + 4) * u + std::expm1(lse.bounds[r])) + flushed;
      const double error = softmax_error * magnitude + softmax * rows.row_error * magnitude +
                           4 * u * std::abs(rows.target[c]);
      const double value = (softmax * total - rows.target[c]) * dloss[r];
      dlogits.add(
          value, numerics::stored_bound(value, error * std::abs(dloss[r]), rows.p.dlogits.dtype()));
    }
  }
  return dlogits;
}

}  // namespace

std::vector<Expected> cross_entropy_reference(const CrossEntropyProblem& p) {
  Rows rows{p};
  std::vector<Expected> result;
  Expected lse = Expected::of_size(rows.count);
  if (p.forward()) {
    result.push_back(forward(rows, lse));
    if (p.lse.defined()) result.push_back(lse);
  } else {
    lse.values = p.lse.to_vector();  // forward's, as it is
  }
  if (p.backward()) result.push_back(backward(rows, lse));
  return result;
}

}  // namespace weft::kernels
