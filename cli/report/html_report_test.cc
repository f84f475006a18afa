#include "cli/report/html_report.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/report/svg_plot.h"

using namespace weft::report;
using Catch::Matchers::Contains;

namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

std::vector<std::string> labels(const AxisScale& scale) {
  std::vector<std::string> result;
  for (const Tick& tick : scale.ticks()) result.push_back(tick.label);
  return result;
}

}  // namespace

TEST_CASE("Numbers are written as a person writes them") {
  CHECK(format_number(0.25) == "0.25");
  CHECK(format_number(-3) == "−3");
  CHECK(format_number(12000) == "12,000");
  CHECK(format_number(1e-7) == "10⁻⁷");
  CHECK(format_number(1.25e9) == "1.25×10⁹");
  CHECK(format_number(HUGE_VAL) == "∞");
}

TEST_CASE("Axes end at round ticks and cover the data") {
  const AxisScale linear({}, {0.13, 0.97});
  CHECK(linear.min() <= 0.13);
  CHECK(linear.max() >= 0.97);
  CHECK(linear.at(linear.min()) == 0);
  CHECK(linear.at(linear.max()) == 1);
  CHECK(labels(AxisScale({}, {0, 1})) ==
        std::vector<std::string>{"0", "0.2", "0.4", "0.6", "0.8", "1"});
  CHECK(labels(AxisScale({.scale = Scale::kLog10}, {3e-7, 2e-4, 0, -1, NAN})) ==
        std::vector<std::string>{"10⁻⁷", "10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³"});
  CHECK(labels(AxisScale({.scale = Scale::kLog2}, {0.3, 2})) ==
        std::vector<std::string>{"0.25", "0.5", "1", "2"});
  CHECK(labels(AxisScale({.scale = Scale::kLog2}, {64, 512})) ==
        std::vector<std::string>{"64", "128", "256", "512"});
  const AxisScale log({.scale = Scale::kLog10}, {1, 100});
  CHECK(log.at(10) == Approx(0.5));
  CHECK(!log.shows(0));
  CHECK(!log.shows(NAN));
  // Data without extent, and none at all.
  CHECK(AxisScale({}, {5}).max() > AxisScale({}, {5}).min());
  CHECK(AxisScale({}, {}).ticks().size() > 1);
  CHECK(AxisScale({.scale = Scale::kLog10}, {0}).ticks().size() > 1);
}

TEST_CASE("A page is one file that refers to no other") {
  Page page("A <page>", "of \"everything\" & more");
  page.heading("Heading");
  page.paragraph("1 < 2");
  page.code("weft numerics dot");
  page.add(
      LinePlot{.title = "Lines",
               .x = {.label = "K", .unit = "terms", .scale = Scale::kLog2},
               .y = {.label = "error", .scale = Scale::kLog10},
               .series = {{.name = "measured", .x = {1, 2, 4}, .y = {1e-7, 0, 1e-6}},
                          {.name = "bound", .x = {1, 4}, .y = {1e-6, 1e-5}, .mark = Mark::kDashed},
                          {.name = "cloud", .x = {1, 2}, .y = {1e-6, 2e-6}, .mark = Mark::kPoints}},
               .caption = "About lines."});
  page.add(BarChart{.title = "Bars",
                    .x = {.label = "time", .unit = "ms"},
                    .categories = {"one", "two"},
                    .groups = {{"a", {1, 2}}, {"b", {3, NAN}}}});
  page.add(HeatMap{.title = "Heat",
                   .x_label = "column",
                   .y_label = "row",
                   .value = {.label = "v"},
                   .rows = {{1, 2, 3}, {4, NAN, 6}}});
  page.add(NumberLine{.title = "Numbers",
                      .x = {.label = "value"},
                      .rows = {{"e2m1", {0, 0.5, 1, 1.5, 2}, {1, 2}}}});
  page.add(Table{.columns = {"format", "bits"}, .rows = {{"fp16", "16"}, {"bf16", "16"}}});
  const std::string html = page.html();
  CHECK_THAT(html, Contains("<title>A &lt;page&gt;</title>"));
  CHECK_THAT(html, Contains("of &quot;everything&quot; &amp; more"));
  CHECK_THAT(html, Contains("K (terms)") && Contains("time (ms)") &&
                       Contains("prefers-color-scheme: dark"));
  CHECK_THAT(html, Contains("<th class=\"number\">bits</th>") && Contains("<th>format</th>"));
  CHECK(count(html, "<figure>") == 4);
  CHECK(count(html, "<figure>") == count(html, "</figure>"));
  CHECK(count(html, "<svg") == count(html, "</svg>"));
  CHECK(count(html, "class=\"line") == 4);  // two lines, and each in the legend
  CHECK(count(html, "<title>measured</title>") == 1);
  CHECK(count(html, "M") > 0);
  for (const char* outside : {"http:", "https:", "<script", "<link", "url(", "nan", "inf\""}) {
    INFO(outside);
    CHECK(count(html, outside) == 0);
  }
}

TEST_CASE("The legend says where a line is that another one covers") {
  Page page("covered");
  page.add(LinePlot{.series = {{.name = "a", .x = {1, 2}, .y = {3, 4}},
                               {.name = "b", .x = {1, 2}, .y = {3, 5}},
                               {.name = "c", .x = {1, 2}, .y = {3, 4}},
                               {.name = "d"},
                               {.name = "e"}}});
  const std::string html = page.html();
  CHECK(count(html, "a, under c") == 1);
  CHECK(count(html, ", under") == 1);
}

TEST_CASE("A zero leaves a gap in a line on a logarithmic axis") {
  Page page("gap");
  page.add(LinePlot{.y = {.scale = Scale::kLog10},
                    .series = {{.name = "s", .x = {1, 2, 3, 4, 5}, .y = {1, 1, 0, 1, 1}}}});
  const std::string html = page.html();
  const size_t begin = html.rfind("class=\"line c0\" d=\"M");
  const std::string path = html.substr(begin, html.find("><title>s", begin) - begin);
  CHECK(count(path, "M") == 2);
  CHECK(count(path, "L") == 2);
}

TEST_CASE("Large matrices are reduced by the largest value of each block") {
  std::vector<std::vector<double>> rows(250, std::vector<double>(130, 0.5));
  rows[249][129] = 7;
  Page page("heat");
  page.add(HeatMap{.rows = rows});
  const std::string html = page.html();
  CHECK(count(html, "<title>0.5</title>") == 84 * 44 - 1);
  CHECK(count(html, "<title>7</title>") == 1);
}

TEST_CASE("Rows and columns of a matrix have names and words where there is room") {
  const std::vector<std::string> names = {"a <cat>", "a name of more than 26 characters"};
  Page page("heat");
  page.add(HeatMap{.value = {.min = 0, .max = 1},
                   .rows = {{1, 0.25}, {0, 1}},
                   .row_names = names,
                   .column_names = names,
                   .texts = {{"12", "too wide"}, {"0", "3"}}});
  const std::string html = page.html();
  CHECK(count(html, ">a &lt;cat&gt;</text>") == 2);
  CHECK(count(html, ">a name of more than 26 characters</text>") == 1);
  CHECK(count(html, ">a nam…e than 26 characters</text>") == 1);
  CHECK(count(html, "<title>a &lt;cat&gt;, a name of more than 26 characters: 0.25</title>") == 1);
  CHECK(count(html, ">12</text>") == 1);
  CHECK(count(html, "too wide") == 0);
  // Too many for words: names are told of cells alone, and of a block its first.
  std::vector<std::string> many;
  for (int i = 0; i < 150; ++i) many.push_back("class " + std::to_string(i));
  Page large("large");
  large.add(HeatMap{.rows = std::vector<std::vector<double>>(150, std::vector<double>(150, 0.5)),
                    .row_names = many,
                    .column_names = many});
  const std::string blocks = large.html();
  CHECK(count(blocks, "<title>class 2, class 148: 0.5</title>") == 1);
  CHECK(count(blocks, "class 1, ") == 0);
  CHECK(count(blocks, ">class 149</text>") == 1);
  CHECK(count(blocks, ">class 77</text>") == 0);
}

TEST_CASE("Pictures lie in the page") {
  Page page("pictures");
  page.add(Gallery{.pictures = {{.png = "foob", .height = 3, .width = 4, .text = "it's\n\"A\""}},
                   .caption = "Two < three."});
  const std::string html = page.html();
  CHECK_THAT(html, Contains("<img width=\"4\" height=\"3\" alt=\"it&#39;s\n&quot;A&quot;\" "
                            "src=\"data:image/png;base64,Zm9vYg==\">"));
  CHECK_THAT(html, Contains("<figcaption>it&#39;s\n&quot;A&quot;</figcaption>"));
  CHECK_THAT(html, Contains("Two &lt; three."));
}

TEST_CASE("A page that cannot be written is an error and no file") {
  const char* scratch = std::getenv("TEST_TMPDIR");
  const std::string folder = scratch ? scratch : "/tmp";
  const Page page("text");
  CHECK_THROWS_WITH(page.write(folder + "/absent/page.html"), Contains("/absent/"));
  page.write(folder + "/page.html");
  std::stringstream text;
  text << std::ifstream(folder + "/page.html").rdbuf();
  CHECK(text.str() == page.html());
  std::filesystem::remove(folder + "/page.html");
}

TEST_CASE("Bars lie on both sides of an origin, in two colours") {
  Page page("bars");
  page.add(BarChart{.x = {.label = "ratio", .scale = Scale::kLog2},
                    .origin = 1,
                    .categories = {"behind", "ahead"},
                    .groups = {{"against", {0.5, 2}}}});
  const std::string html = page.html();
  // Of the same width, the second begins where the first ends.
  const auto bar = [&](const char* colour) {
    const size_t at = html.find(std::string("<rect class=\"") + colour + "\"");
    REQUIRE(at != std::string::npos);
    double x = 0, y = 0, width = 0;
    CHECK(std::sscanf(html.c_str() + at, "<rect class=\"c%*d\" x=\"%lf\" y=\"%lf\" width=\"%lf\"",
                      &x, &y, &width) == 3);
    return std::pair(x, width);
  };
  const auto [x, width] = bar("c0");
  const auto [x_behind, width_behind] = bar("c1");
  CHECK(width == Approx(width_behind).margin(0.11));
  CHECK(x_behind + width_behind == Approx(x).margin(0.11));
}
