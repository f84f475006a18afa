// One self-contained HTML page: text, tables and plots, readable in light and dark. No script, no
// network, no file beside it.
//
//   report::Page page("Dot products", "error against the exact result");
//   page.paragraph("Each point is the mean of 100 dot products.");
//   page.add(report::LinePlot{.title = "Error",
//                             .x = {.label = "K", .unit = "terms", .scale = Scale::kLog2},
//                             .y = {.label = "relative error", .scale = Scale::kLog10},
//                             .series = {{.name = "bf16", .x = ks, .y = errors}}});
//   page.write("dot.html");
//
// Text is plain: it is escaped. Values that are not finite, or not positive on a logarithmic axis,
// are left out of a plot. The plots are SVG; colours are the page's, so that they follow the
// reader's preference.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace weft::report {

enum class Scale { kLinear, kLog2, kLog10 };

struct Axis {
  std::string label;
  std::string unit;  // shown in brackets; empty for a pure number
  Scale scale = Scale::kLinear;
  std::optional<double> min, max;  // else from the data
};

/// How a series is drawn. Bounds and references are dashed, measurements solid.
enum class Mark { kLine, kDashed, kPoints, kLineAndPoints };

struct Series {
  std::string name;
  std::vector<double> x, y;
  Mark mark = Mark::kLine;
  /// One of the page's colours, 0 to 7; -1: the next in turn. A bound shares its measurement's.
  int color = -1;
  /// False for a companion that the caption explains.
  bool in_legend = true;
};

/// Lines, dashed lines and points over two axes; also a scatter plot.
struct LinePlot {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
  std::string caption;
};

struct BarGroup {
  std::string name;            // of the series
  std::vector<double> values;  // one per category
};

/// Horizontal bars, grouped by category. They start at 0 or, on a logarithmic axis, at its lower
/// end; or at `origin`, to either side of it. Those of a single group are then of two colours.
struct BarChart {
  std::string title;
  Axis x;  // of the values
  std::optional<double> origin = {};
  std::vector<std::string> categories;
  std::vector<BarGroup> groups;
  std::string caption;
};

/// A matrix in colours, the first row on top. At most about 100 x 100 cells are drawn: a larger
/// matrix is reduced by the largest value of each block.
struct HeatMap {
  std::string title;
  std::string x_label, y_label;
  Axis value;
  std::vector<std::vector<double>> rows;
  std::string caption;
  /// Names of rows and columns: beside them where they have room, else told of a cell pointed at.
  std::vector<std::string> row_names = {}, column_names = {};
  /// Of each row and column, what a cell says; left out where cells are small.
  std::vector<std::vector<std::string>> texts = {};
};

struct NumberLineRow {
  std::string name;
  std::vector<double> points;
  /// Drawn taller: powers of two, limits.
  std::vector<double> tall;
};

/// The values that formats can hold, a row each over one axis.
struct NumberLine {
  std::string title;
  Axis x;
  std::vector<NumberLineRow> rows;
  std::string caption;
};

/// Cells are text; numeric columns are aligned right.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string caption;
};
/// On standard output, as wide as its cells, and at least as the columns' widths say; the first
/// `left` columns are aligned left.
void print_table(const Table& table, const std::vector<size_t>& least_widths = {}, size_t left = 1);

struct Picture {
  std::string png;  // a file's bytes
  int height = 0, width = 0;
  std::string text;  // below it, in its own lines
};

/// Small pictures side by side.
struct Gallery {
  std::vector<Picture> pictures;
  std::string caption;
};

using Figure = std::variant<LinePlot, BarChart, HeatMap, NumberLine>;

class Page {
 public:
  explicit Page(std::string title, std::string subtitle = "");

  void heading(const std::string& text);
  void paragraph(const std::string& text);
  /// A command line, or other text in its own lines.
  void code(const std::string& text);
  void add(const Figure& figure);
  void add(const Table& table);
  void add(const Gallery& gallery);

  std::string html() const;
  /// The whole page in its place, or an Error and no file.
  void write(const std::string& path) const;

 private:
  std::string title_, subtitle_, body_;
};

}  // namespace weft::report
