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
