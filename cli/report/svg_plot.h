// Plots as SVG elements whose colours are classes of the page's style.
#pragma once

#include <string>
#include <vector>

#include "cli/report/html_report.h"

namespace weft::report {

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

/// Text for HTML: & < > and quotes are written as entities.
std::string escape(const std::string& text);

}  // namespace weft::report
