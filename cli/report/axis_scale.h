// Where values lie on an axis of a plot, and its ticks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/report/html_report.h"

namespace weft::report {

struct Tick {
  double value;
  std::string label;
};

class AxisScale {
 public:
  /// Covers the finite (and on a logarithmic axis positive) values given, unless the axis says
  /// otherwise, and ends at ticks.
  AxisScale(const Axis& axis, const std::vector<double>& values);

  bool shows(double value) const;
  /// In [0, 1] over the axis; values beyond its ends are moved to them.
  double at(double value) const;
  double min() const { return min_; }
  double max() const { return max_; }
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  double transform(double value) const;

  Scale scale_;
  double min_, max_;
  std::vector<Tick> ticks_;
};

/// A number as a person writes it: 0.25, 1.2e-07 as 1.2x10^-7 with raised digits, 12,000.
std::string format_number(double value);

/// "label (unit)".
std::string axis_title(const Axis& axis);

}  // namespace weft::report
