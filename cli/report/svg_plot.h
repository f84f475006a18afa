// Plots as SVG elements whose colours are classes of the page's style, and where values lie on
// their axes.
#pragma once

#include <string>
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

inline constexpr int kColors = 8;

struct LegendEntry {
  std::string name;
  int color;
  Mark mark;
};

constexpr bool has_line(Mark mark) { return mark != Mark::kPoints; }
constexpr bool has_dots(Mark mark) { return mark == Mark::kPoints || mark == Mark::kLineAndPoints; }
/// "line dashed c3"
std::string line_class(Mark mark, int color);

struct Drawing {
  std::string svg;
  std::vector<LegendEntry> legend;
};

Drawing draw(const LinePlot& plot);
Drawing draw(const BarChart& chart);
Drawing draw(const HeatMap& map);
Drawing draw(const NumberLine& line);

/// Text for HTML: & < > and both kinds of quotes are written as entities.
std::string escape(const std::string& text);

}  // namespace weft::report
