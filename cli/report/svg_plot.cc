#include "cli/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace weft::report {
namespace {

// Units of the view box; the page scales it to its width.
constexpr double kWidth = 720;
// A character of the labels' 12-unit font is about so wide.
constexpr double kCharacter = 7.4;

struct Box {
  double left, top, right, bottom;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
  double x(const AxisScale& scale, double value) const { return left + scale.at(value) * width(); }
  double y(const AxisScale& scale, double value) const {
    return bottom - scale.at(value) * height();
  }
};

class Svg {
 public:
  explicit Svg(const std::string& title, double height) {
    put("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, height,
        escape(title));
  }
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(arguments)...);
  }
  void text(double x, double y, const char* anchor, const std::string& what) {
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor, escape(what));
  }
  void small_text(double x, double y, const std::string& what) {
    put("<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x, y, what);
  }
  void line(const char* style, double x1, double y1, double x2, double y2) {
    put("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", style, x1,
        y1, x2, y2);
  }
  std::string finish() {
    text_ += "</svg>";
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Characters as the reader sees them, not bytes.
double text_width(const std::string& text) {
  const auto is_character = [](char c) { return (c & 0xc0) != 0x80; };
  return kCharacter * static_cast<double>(std::ranges::count_if(text, is_character));
}

/// At most so many characters, with an ellipsis for what is left out: names that begin alike, as
/// those of layers, differ at their ends.
std::string shortened(const std::string& text, size_t most) {
  std::vector<size_t> begins;  // of the characters
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xc0) != 0x80) begins.push_back(i);
  }
  if (begins.size() <= most) return text;
  const size_t front = most / 5, back = most - 1 - front;
  return text.substr(0, begins[front]) + "…" + text.substr(begins[begins.size() - back]);
}

/// What an axis says at its end: the name of a row or column, or its number.
std::string end_name(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? shortened(names[i], 26) : std::to_string(i);
}

double widest(const std::vector<std::string>& texts) {
  double width = 0;
  for (const std::string& text : texts) width = std::max(width, text_width(text));
  return width;
}

void draw_x_axis(Svg& svg, const Box& box, const AxisScale& scale, const Axis& axis) {
  for (const Tick& tick : scale.ticks()) {
    const double x = box.x(scale, tick.value);
    svg.line("grid", x, box.top, x, box.bottom);
    svg.text(x, box.bottom + 16, "middle", tick.label);
  }
  svg.line("axis", box.left, box.bottom, box.right, box.bottom);
  svg.text((box.left + box.right) / 2, box.bottom + 34, "middle", axis_title(axis));
}

void draw_y_title(Svg& svg, const Box& box, const std::string& title) {
  const double y = (box.top + box.bottom) / 2;
  svg.put("<text transform=\"translate(13 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
          y, escape(title));
}

// Five samples of the viridis map (van der Walt and Smith, 2015): equal steps look equal, also
// without colour vision.
constexpr std::array<std::array<double, 3>, 5> kViridis = {
    {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};

std::string heat_color(double position) {
  const double at = std::clamp(position, 0.0, 1.0) * (kViridis.size() - 1);
  const size_t low = std::min(static_cast<size_t>(at), kViridis.size() - 2);
  const double share = at - static_cast<double>(low);
  std::string color = "#";
  for (size_t i = 0; i < 3; ++i) {
    const double from = kViridis[low][i], to = kViridis[low + 1][i];
    color += fmt::format("{:02x}", std::lround(from + share * (to - from)));
  }
  return color;
}

/// Rows and columns that are drawn as one, so that there are at most `limit` of either.
size_t block_size(const std::vector<std::vector<double>>& rows, size_t limit) {
  const size_t columns = rows.empty() ? 0 : rows[0].size();
  return std::max<size_t>(1, (std::max(rows.size(), columns) + limit - 1) / limit);
}

/// Each cell the largest finite value of its block of `by` rows and columns.
std::vector<std::vector<double>> reduced(const std::vector<std::vector<double>>& rows, size_t by) {
  const size_t columns = rows.empty() ? 0 : rows[0].size();
  std::vector<std::vector<double>> result((rows.size() + by - 1) / by);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].assign((columns + by - 1) / by, NAN);
    for (size_t r = i * by; r < std::min(rows.size(), (i + 1) * by); ++r) {
      for (size_t c = 0; c < columns; ++c) {
        double& cell = result[i][c / by];
        if (!(cell >= rows[r][c]) && !std::isnan(rows[r][c])) cell = rows[r][c];
      }
    }
  }
  return result;
}

}  // namespace

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const std::string_view entity = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '"'  ? "&quot;"
                                    : c == '\'' ? "&#39;"
                                                : std::string_view(&c, 1);
    result += entity;
  }
  return result;
}

std::string line_class(Mark mark, int color) {
  return fmt::format("line{} c{}", mark == Mark::kDashed ? " dashed" : "", color);
}

Drawing draw(const LinePlot& plot) {
  std::vector<double> xs, ys;
  for (const Series& series : plot.series) {
    xs.insert(xs.end(), series.x.begin(), series.x.end());
    ys.insert(ys.end(), series.y.begin(), series.y.end());
  }
  const AxisScale x_scale(plot.x, xs), y_scale(plot.y, ys);
  std::vector<std::string> labels;
  for (const Tick& tick : y_scale.ticks()) labels.push_back(tick.label);
  constexpr double kHeight = 380;
  const Box box = {32 + widest(labels), 10, kWidth - 30, kHeight - 42};

  Drawing drawing;
  Svg svg(plot.title, kHeight);
  for (const Tick& tick : y_scale.ticks()) {
    const double y = box.y(y_scale, tick.value);
    svg.line("grid", box.left, y, box.right, y);
    svg.text(box.left - 6, y + 4, "end", tick.label);
  }
  draw_x_axis(svg, box, x_scale, plot.x);
  draw_y_title(svg, box, axis_title(plot.y));

  int next_color = 0;
  std::vector<std::string> paths;
  std::vector<int> colors;
  for (const Series& series : plot.series) {
    const int color = (series.color >= 0 ? series.color : next_color++) % kColors;
    std::string path, dots;
    bool pen_down = false;
    for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (!x_scale.shows(series.x[i]) || !y_scale.shows(series.y[i])) {
        pen_down = false;
        continue;
      }
      const double x = box.x(x_scale, series.x[i]);
      const double y = box.y(y_scale, series.y[i]);
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down ? "L" : "M", x, y);
      fmt::format_to(std::back_inserter(dots), "M{:.1f} {:.1f}h0", x, y);
      pen_down = true;
    }
    const std::string name = escape(series.name);
    const auto draw_path = [&](const std::string& style, const std::string& d) {
      svg.put("<path class=\"{}\" d=\"{}\"><title>{}</title></path>", style, d, name);
    };
    if (has_line(series.mark)) draw_path(line_class(series.mark, color), path);
    if (has_dots(series.mark)) draw_path(fmt::format("dots c{}", color), dots);
    paths.push_back(path);
    colors.push_back(color);
  }
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    if (!series.in_legend) continue;
    // Whoever looks for a line that a later one covers is told where it is.
    const auto cover =
        std::find(paths.begin() + static_cast<int64_t>(i) + 1, paths.end(), paths[i]);
    const bool is_covered = cover != paths.end() && !paths[i].empty();
    const std::string place =
        is_covered ? fmt::format(", under {}", plot.series[cover - paths.begin()].name) : "";
    drawing.legend.push_back({series.name + place, colors[i], series.mark});
  }
  drawing.svg = svg.finish();
  return drawing;
}

Drawing draw(const BarChart& chart) {
  std::vector<double> values;
  for (const BarGroup& group : chart.groups) {
    values.insert(values.end(), group.values.begin(), group.values.end());
  }
  Axis axis = chart.x;
  if (chart.origin) {
    values.push_back(*chart.origin);
  } else if (axis.scale == Scale::kLinear) {
    values.push_back(0);
  } else if (!axis.min) {
    // Room for the shortest bar to be seen.
    double least = HUGE_VAL;
    for (double value : values) {
      if (value > 0) least = std::min(least, value);
    }
    if (std::isfinite(least)) values.push_back(least / 2);
  }
  const AxisScale scale(axis, values);
  const double bar = chart.groups.size() > 3 ? 8 : 12;
  const double band = bar * static_cast<double>(chart.groups.size()) + 8;
  const double height = 52 + band * static_cast<double>(chart.categories.size());
  const Box box = {12 + widest(chart.categories), 6, kWidth - 70, height - 42};

  Drawing drawing;
  Svg svg(chart.title, height);
  draw_x_axis(svg, box, scale, axis);
  const double start =
      chart.origin.value_or(scale.shows(0) ? std::max(0.0, scale.min()) : scale.min());
  const double origin = box.x(scale, start);
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    const double top = box.top + band * static_cast<double>(i) + 4;
    svg.text(box.left - 6, top + band / 2 - 1, "end", chart.categories[i]);
    for (size_t g = 0; g < chart.groups.size(); ++g) {
      const double value = i < chart.groups[g].values.size() ? chart.groups[g].values[i] : NAN;
      const double y = top + bar * static_cast<double>(g);
      if (!scale.shows(value)) {
        svg.small_text(origin + 4, y + bar - 2, std::isnan(value) ? "–" : format_number(value));
        continue;
      }
      const double x = box.x(scale, value);
      const double left = std::min(x, origin), width = std::abs(x - origin);
      const bool is_behind = chart.origin && chart.groups.size() == 1 && value < start;
      svg.put(
          "<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
          "<title>{}: {}</title></rect>",
          is_behind ? 1 : g % kColors, left, y, width, bar - 1,
          escape(chart.categories[i] + ", " + chart.groups[g].name), format_number(value));
      svg.small_text(left + width + 4, y + bar - 2, format_number(value));
    }
  }
  if (chart.origin) svg.line("axis", origin, box.top, origin, box.bottom);
  for (size_t g = 0; g < chart.groups.size(); ++g) {
    drawing.legend.push_back({chart.groups[g].name, static_cast<int>(g % kColors), Mark::kPoints});
  }
  if (drawing.legend.size() == 1) drawing.legend.clear();
  drawing.svg = svg.finish();
  return drawing;
}

Drawing draw(const HeatMap& map) {
  const size_t by = block_size(map.rows, 100);
  const std::vector<std::vector<double>> rows = reduced(map.rows, by);
  std::vector<double> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  Axis axis = map.value;
  if (axis.scale == Scale::kLinear && !axis.min) values.push_back(0);
  const AxisScale scale(axis, values);
  const size_t columns = rows.empty() ? 0 : rows[0].size();
  const double largest = map.texts.empty() ? 24 : 36;
  constexpr double kReadable = 13;  // a cell's height beside which a name can stand
  std::vector<std::string> row_names, column_names;
  for (const std::string& name : map.row_names) row_names.push_back(shortened(name, 40));
  for (const std::string& name : map.column_names) column_names.push_back(shortened(name, 26));
  if (by > 1) row_names.clear();
  const double left = std::max(60.0, 30 + widest(row_names));
  constexpr double kColorScale = 140;  // beside the cells
  const double most = std::min(420.0, kWidth - left - kColorScale);
  const auto side = [&](size_t count) {
    return std::min(most / static_cast<double>(std::max<size_t>(count, 1)), largest);
  };
  double cell_width = side(columns), cell_height = side(rows.size());
  if (row_names.empty()) {
    cell_width = cell_height = std::min(cell_width, cell_height);
  } else {
    cell_height = std::max(cell_height, kReadable);
  }
  if (by > 1 || cell_width < kReadable) column_names.clear();
  // Names of columns stand upright.
  const double below = column_names.empty() ? 30 : 22 + widest(column_names);
  const Box box = {left, 22, left + cell_width * static_cast<double>(columns),
                   22 + cell_height * static_cast<double>(rows.size())};
  const double height = std::max(box.bottom + below + 10, 260.0);

  Svg svg(map.title, height);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const double value = rows[i][j];
      const double position = scale.shows(value) ? scale.at(value) : value > 0 ? 1 : 0;
      const double x = box.left + cell_width * static_cast<double>(j);
      const double y = box.top + cell_height * static_cast<double>(i);
      svg.put(
          "<rect class=\"cell\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "fill=\"{}\">",
          x, y, cell_width, cell_height, std::isnan(value) ? "none" : heat_color(position));
      std::string what = format_number(value);
      if (i * by < map.row_names.size() && j * by < map.column_names.size()) {
        what = map.row_names[i * by] + ", " + map.column_names[j * by] + ": " + what;
      }
      svg.put("<title>{}</title></rect>", escape(what));
      if (by == 1 && i < map.texts.size() && j < map.texts[i].size() &&
          text_width(map.texts[i][j]) <= cell_width) {
        svg.put("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                position < 0.6 ? "on-dark" : "on-light", x + cell_width / 2,
                y + cell_height / 2 + 4, escape(map.texts[i][j]));
      }
    }
  }
  if (column_names.empty()) {
    const size_t full_columns = map.rows.empty() ? 0 : map.rows[0].size();
    const size_t last = std::max<size_t>(full_columns, 1) - 1;
    svg.text(box.left, box.bottom + 16, "start", end_name(map.column_names, 0));
    svg.text(box.right, box.bottom + 16, "end", end_name(map.column_names, last));
  }
  for (size_t j = 0; j < column_names.size(); ++j) {
    svg.put(
        "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"end\">{}</text>",
        box.left + cell_width * (static_cast<double>(j) + 0.5) + 4, box.bottom + 6,
        escape(column_names[j]));
  }
  svg.text((box.left + box.right) / 2, box.bottom + below, "middle", map.x_label);
  if (row_names.empty()) {
    svg.text(box.left - 6, box.top + 11, "end", "0");
    svg.text(box.left - 6, box.bottom, "end",
             std::to_string(std::max<size_t>(map.rows.size(), 1) - 1));
  }
  for (size_t i = 0; i < row_names.size(); ++i) {
    svg.text(box.left - 6, box.top + cell_height * (static_cast<double>(i) + 0.5) + 4, "end",
             row_names[i]);
  }
  draw_y_title(svg, box, map.y_label);

  // The scale of colours, its largest value on top.
  const double bar_left = box.right + 40, bar_top = box.top,
               bar_height = std::max(box.height(), 180.0);
  constexpr int kSteps = 64;
  for (int i = 0; i < kSteps; ++i) {
    const double y = bar_top + bar_height * (1 - (i + 1.0) / kSteps);
    svg.put(
        "<rect class=\"cell\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"16\" height=\"{:.2f}\" "
        "fill=\"{}\"/>",
        bar_left, y, bar_height / kSteps + 1, heat_color((i + 0.5) / kSteps));
  }
  for (const Tick& tick : scale.ticks()) {
    svg.text(bar_left + 22, bar_top + (1 - scale.at(tick.value)) * bar_height + 4, "start",
             tick.label);
  }
  const std::string title = axis_title(axis);
  svg.text(std::min(bar_left, kWidth - 4 - text_width(title)), 12, "start", title);
  return {svg.finish(), {}};
}

Drawing draw(const NumberLine& line) {
  std::vector<double> values;
  std::vector<std::string> names;
  for (const NumberLineRow& row : line.rows) {
    values.insert(values.end(), row.points.begin(), row.points.end());
    names.push_back(row.name);
  }
  const AxisScale scale(line.x, values);
  constexpr double kRow = 30;
  const double height = 52 + kRow * static_cast<double>(line.rows.size());
  const Box box = {14 + widest(names), 6, kWidth - 30, height - 42};

  Svg svg(line.title, height);
  draw_x_axis(svg, box, scale, line.x);
  for (size_t i = 0; i < line.rows.size(); ++i) {
    const NumberLineRow& row = line.rows[i];
    const double middle = box.top + kRow * (static_cast<double>(i) + 0.5);
    svg.text(box.left - 8, middle + 4, "end", row.name);
    svg.line("axis", box.left, middle, box.right, middle);
    for (const auto* points : {&row.points, &row.tall}) {
      const double half = points == &row.tall ? 10 : 5;
      std::string path;
      for (double value : *points) {
        if (!scale.shows(value) || value < scale.min() || value > scale.max()) continue;
        fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}v{}", box.x(scale, value),
                       middle - half, 2 * half);
      }
      svg.put("<path class=\"tickmark c{}\" d=\"{}\"/>", i % kColors, path);
    }
  }
  return {svg.finish(), {}};
}

}  // namespace weft::report
