#include "cli/report/html_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/report/svg_plot.h"
#include "io/base64.h"
#include "io/files.h"
#include "io/progress.h"

namespace weft::report {
namespace {

// Eight colours that keep apart for readers without full colour vision, a set for each background.
constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --back: #ffffff; --text: #1d2430; --soft: #5b6472;
  --grid: #e3e6eb; --axis: #8a93a0; --box: #f5f6f8;
  --c0: #0b62b8; --c1: #c8500a; --c2: #1a7f4b; --c3: #8b3fa8; --c4: #a87a00; --c5: #0e8a94;
  --c6: #c2255c; --c7: #5c636e; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --text: #e4e7ec; --soft: #9aa3b0;
  --grid: #2a2f38; --axis: #6b7482; --box: #1c2027;
  --c0: #6cb2ff; --c1: #ff9557; --c2: #5fd39a; --c3: #d296ec; --c4: #ebc04b; --c5: #58d3dd;
  --c6: #ff7fab; --c7: #b3bac5; } }
body { background: var(--back); color: var(--text); margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
.subtitle, figcaption, caption { color: var(--soft); }
figure { margin: 1.5rem 0; } figure h3 { font-size: 1rem; margin: 0 0 .3rem; }
figcaption { font-size: .9rem; }
svg { width: 100%; max-width: 52rem; height: auto; display: block; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg text.small { fill: var(--soft); font-size: 10px; }
.cell { shape-rendering: crispEdges; }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
.line, .dots, .tickmark { fill: none; } .line { stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 6 4; stroke-width: 1.5; }
.dots { stroke-width: 5; stroke-linecap: round; } .tickmark { stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; margin: 0 0 .3rem; }
.legend svg { width: 22px; height: 10px; display: inline; margin-right: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--grid); text-align: left;
  white-space: nowrap; }
th.number, td.number { text-align: right; }
.on-dark { fill: #ffffff; } .on-light { fill: #1d2430; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem; }
.gallery figure { margin: 0; } .gallery figcaption { white-space: pre-line; overflow-wrap: anywhere; }
.gallery img { display: block; height: 6rem; width: auto; max-width: 100%; object-fit: contain;
  image-rendering: pixelated; margin-bottom: .3rem; }
@media (max-width: 40rem) { body { margin: 1rem auto; } .plot { overflow-x: auto; }
  .plot > svg { min-width: 36rem; } }
pre { background: var(--box); padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; }
)css";

std::string style() {
  std::string text = kStyle;
  for (int i = 0; i < kColors; ++i) {
    text +=
        fmt::format("path.c{0} {{ stroke: var(--c{0}); }} rect.c{0} {{ fill: var(--c{0}); }}\n", i);
  }
  return text;
}

std::string legend_html(const std::vector<LegendEntry>& entries) {
  std::string html;
  for (const auto& [name, color, mark] : entries) {
    html += "<span><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\">";
    if (has_line(mark))
      html += fmt::format("<path class=\"{}\" d=\"M0 5H22\"/>", line_class(mark, color));
    if (has_dots(mark)) html += fmt::format("<path class=\"dots c{}\" d=\"M11 5h0\"/>", color);
    html += "</svg>" + escape(name) + "</span>";
  }
  return html.empty() ? html : "<div class=\"legend\">" + html + "</div>\n";
}

/// Whether a cell reads as a number: its column is then aligned right.
bool is_number(const std::string& cell) {
  return cell.empty() ||
         std::string_view("0123456789-+.").find(cell[0]) != std::string_view::npos ||
         cell == "nan" || cell == "inf" || cell == "–";
}

}  // namespace

void print_table(const Table& table, const std::vector<size_t>& least_widths, size_t left) {
  std::vector<io::Table::Column> columns;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    size_t width = i < least_widths.size() ? least_widths[i] : 0;
    for (const auto& row : table.rows) width = std::max(width, row[i].size());
    columns.push_back({table.columns[i], static_cast<int>(width),
                       i < left ? io::Table::Align::kLeft : io::Table::Align::kRight});
  }
  io::Table out(columns);
  for (const auto& row : table.rows) out.row(row);
}

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void Page::heading(const std::string& text) { body_ += "<h2>" + escape(text) + "</h2>\n"; }

void Page::paragraph(const std::string& text) { body_ += "<p>" + escape(text) + "</p>\n"; }

void Page::code(const std::string& text) { body_ += "<pre>" + escape(text) + "</pre>\n"; }

void Page::add(const Figure& figure) {
  std::visit(
      [&](const auto& plot) {
        const auto [svg, legend] = draw(plot);
        body_ += "<figure>\n<h3>" + escape(plot.title) + "</h3>\n" + legend_html(legend) +
                 "<div class=\"plot\">" + svg + "</div>\n";
        if (!plot.caption.empty())
          body_ += "<figcaption>" + escape(plot.caption) + "</figcaption>\n";
        body_ += "</figure>\n";
      },
      figure);
}

void Page::add(const Table& table) {
  std::vector<const char*> kinds(table.columns.size(), " class=\"number\"");
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < std::min(row.size(), kinds.size()); ++i) {
      if (!is_number(row[i])) kinds[i] = "";
    }
  }
  body_ += "<div class=\"scroll\"><table>\n";
  if (!table.caption.empty()) body_ += "<caption>" + escape(table.caption) + "</caption>\n";
  body_ += "<thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    body_ += fmt::format("<th{}>{}</th>", kinds[i], escape(table.columns[i]));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    body_ += "<tr>";
    for (size_t i = 0; i < std::min(row.size(), kinds.size()); ++i) {
      body_ += fmt::format("<td{}>{}</td>", kinds[i], escape(row[i]));
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void Page::add(const Gallery& gallery) {
  body_ += "<div class=\"gallery\">\n";
  for (const Picture& picture : gallery.pictures) {
    body_ += fmt::format(
        "<figure><img width=\"{}\" height=\"{}\" alt=\"{}\" "
        "src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>\n",
        picture.width, picture.height, escape(picture.text), io::base64(picture.png),
        escape(picture.text));
  }
  body_ += "</div>\n";
  if (!gallery.caption.empty()) {
    body_ += "<p class=\"subtitle\">" + escape(gallery.caption) + "</p>\n";
  }
}

std::string Page::html() const {
  const std::string title = escape(title_);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      title, style());
  if (!subtitle_.empty()) html += "<p class=\"subtitle\">" + escape(subtitle_) + "</p>\n";
  return html + body_ + "</body>\n</html>\n";
}

void Page::write(const std::string& path) const {
  io::write_file_atomically(path, [&](io::FileWriter& file) { file.write(html()); });
}

}  // namespace weft::report
