#include "cli/report/kernel_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "kernels/testing/bench.h"

namespace weft::cli {
namespace {

using nlohmann::json;
using report::Scale;

/// The fields of a row that the page needs.
struct Row {
  std::string op, variant, dtype, name;
  double median_us, spread, flops, bytes, tflop_s, gb_s;
  double share = 0;         // 0: the run had no roofline
  double vendor_ratio = 0;  // 0: no vendor's variant took the case

  bool is_vendor() const { return kernels::is_vendor_variant(variant); }
};

Row row_of(const json& j) {
  const double median = j.at("median_us"), lower = j.at("lower_us"), upper = j.at("upper_us");
  return {.op = j.at("op"),
          .variant = j.at("variant"),
          .dtype = j.at("dtype"),
          .name = j.at("case"),
          .median_us = median,
          .spread = (upper - lower) / median,
          .flops = j.at("flops"),
          .bytes = j.at("bytes"),
          .tflop_s = j.at("tflop_s"),
          .gb_s = j.at("gb_s"),
          .share = j.value("share", 0.0),
          .vendor_ratio = j.value("vendor_ratio", 0.0)};
}

class GeometricMean {
 public:
  void add(double x) {
    logarithms_ += std::log(x);
    ++count_;
  }
  double value() const { return count_ ? std::exp(logarithms_ / count_) : NAN; }

 private:
  double logarithms_ = 0;
  int count_ = 0;
};

/// Of the rows of each case the quickest that `takes` accepts, in the order of the cases.
template <class Takes>
std::vector<const Row*> best_of_cases(const std::vector<Row>& rows, Takes&& takes) {
  std::vector<const Row*> best;
  for (const Row& row : rows) {
    if (!takes(row)) continue;
    const auto same = std::ranges::find_if(
        best, [&](const Row* other) { return other->op == row.op && other->name == row.name; });
    if (same == best.end()) {
      best.push_back(&row);
    } else if (row.median_us < (*same)->median_us) {
      *same = &row;
    }
  }
  return best;
}

/// Ops that multiply matrices; the others move memory.
bool is_matrix_op(const std::string& op) {
  return op == "gemm" || op == "conv2d" || op == "attention";
}

void add_roofline(report::Page& page, const KernelRows& run, const std::vector<Row>& rows) {
  const double copy = run.roofline.at("copy_gb_s");
  const auto peaks = run.roofline.at("matmul_tflop_s").get<std::map<std::string, double>>();
  const auto best = best_of_cases(rows, [](const Row& row) { return row.flops > 0; });
  double low = INFINITY, high = 0;
  std::set<std::string> dtypes;
  for (const Row* row : best) {
    low = std::min(low, row->flops / row->bytes);
    high = std::max(high, row->flops / row->bytes);
    if (peaks.contains(row->dtype)) dtypes.insert(row->dtype);
  }
  if (best.empty()) return;
  report::LinePlot plot{
      .title = "The roofline",
      .x = {.label = "arithmetic intensity", .unit = "operations per byte", .scale = Scale::kLog10},
      .y = {.label = "rate", .unit = "TFLOP/s", .scale = Scale::kLog10},
      .caption =
          "Dashed: what the device can do, the copy rate on the slope and a library's best "
          "matrix rate on the flat, for each dtype. A point is the quickest variant on a "
          "case. Below the slope a kernel waits for memory; its distance is what is lost."};
  int color = 0;
  for (const std::string& dtype : dtypes) {
    const double peak = peaks.at(dtype);
    const double knee = peak * 1e3 / copy;
    report::Series roof{
        .name = "ceiling " + dtype, .mark = report::Mark::kDashed, .color = color++};
    for (double x : {low / 2, std::clamp(knee, low / 2, high * 2), high * 2}) {
      roof.x.push_back(x);
      roof.y.push_back(std::min(peak, 1e-3 * copy * x));
    }
    plot.series.push_back(std::move(roof));
  }
  for (const std::string family : {"gemm", "conv2d", "attention", "other ops"}) {
    report::Series points{.name = family, .mark = report::Mark::kPoints, .color = color % 8};
    for (const Row* row : best) {
      if ((is_matrix_op(row->op) ? row->op : "other ops") != family) continue;
      points.x.push_back(row->flops / row->bytes);
      points.y.push_back(row->tflop_s);
    }
    if (points.x.empty()) continue;
    plot.series.push_back(std::move(points));
    ++color;
  }
  page.add(plot);
}

void add_shares(report::Page& page, const std::vector<Row>& rows) {
  report::BarChart chart{
      .title = "Share of the roofline",
      .x = {.label = "least possible time over measured time", .min = 0},
      .caption =
          "The quickest variant on each case; geometric means over an op's cases. Above 1: "
          "what the case moves stayed in a cache, or did not have to move."};
  std::map<std::string, GeometricMean> means[2];  // ours, a vendor's
  for (const bool is_vendor : {false, true}) {
    for (const Row* row : best_of_cases(
             rows, [&](const Row& r) { return r.share > 0 && r.is_vendor() == is_vendor; })) {
      means[is_vendor][row->op].add(row->share);
    }
  }
  for (const Row& row : rows) {
    const bool has_mean = means[0].contains(row.op) || means[1].contains(row.op);
    if (has_mean && std::ranges::count(chart.categories, row.op) == 0) {
      chart.categories.push_back(row.op);
    }
  }
  if (chart.categories.empty()) return;
  chart.groups = {{.name = "our kernels", .values = {}}};
  if (!means[1].empty()) chart.groups.push_back({.name = "a vendor's library", .values = {}});
  for (size_t g = 0; g < chart.groups.size(); ++g) {
    for (const std::string& op : chart.categories) {
      chart.groups[g].values.push_back(means[g][op].value());
    }
  }
  page.add(chart);
}

void add_vendor_ratios(report::Page& page, const std::vector<Row>& rows) {
  const auto best =
      best_of_cases(rows, [](const Row& row) { return row.vendor_ratio > 0 && !row.is_vendor(); });
  if (best.empty()) return;
  report::BarChart chart{
      .title = "Beside the vendor's library",
      .x = {.label = "the library's time over ours", .scale = Scale::kLog2},
      .caption = "Our quickest variant; beyond 1 it is ahead. Medians of samples taken in turns."};
  chart.groups = {{.name = "ratio", .values = {}}};
  GeometricMean mean;
  for (const Row* row : best) {
    chart.categories.push_back(row->op + " " + row->name);
    chart.groups[0].values.push_back(row->vendor_ratio);
    mean.add(row->vendor_ratio);
  }
  page.add(chart);
  page.paragraph(fmt::format("Geometric mean of {} cases: {:.2f}.", best.size(), mean.value()));
}

/// Every variant of the matrix product over the cases that all of its dtype's rungs took.
void add_ladder(report::Page& page, const std::vector<Row>& rows) {
  std::map<std::string, std::map<std::string, GeometricMean>> rates;  // variant, dtype
  std::vector<std::string> variants;
  std::set<std::string> dtypes;
  for (const Row& row : rows) {
    if (row.op != "gemm" || row.flops == 0) continue;
    if (!rates.contains(row.variant)) variants.push_back(row.variant);
    rates[row.variant][row.dtype].add(row.tflop_s);
    dtypes.insert(row.dtype);
  }
  if (variants.size() < 2) return;
  report::BarChart chart{.title = "The variants of the matrix product",
                         .x = {.label = "rate", .unit = "TFLOP/s", .scale = Scale::kLog10},
                         .categories = variants,
                         .caption = "Geometric means over the cases that a variant takes."};
  for (const std::string& dtype : dtypes) {
    chart.groups.push_back({.name = dtype, .values = {}});
    for (const std::string& variant : variants) {
      chart.groups.back().values.push_back(rates[variant][dtype].value());
    }
  }
  page.add(chart);
}

report::Table table_of(const std::vector<Row>& rows) {
  report::Table table{.columns = {"op", "case", "variant", "median us", "spread", "TFLOP/s", "GB/s",
                                  "roofline", "vendor"},
                      .caption = "Spread: the middle half of the samples over their median."};
  for (const Row& row : rows) {
    table.rows.push_back({row.op, row.name, row.variant, fmt::format("{:.1f}", row.median_us),
                          fmt::format("{:.0f}%", 100 * row.spread),
                          fmt::format("{:.3f}", row.tflop_s), fmt::format("{:.1f}", row.gb_s),
                          row.share > 0 ? fmt::format("{:.0f}%", 100 * row.share) : "-",
                          row.vendor_ratio > 0 ? fmt::format("{:.2f}x", row.vendor_ratio) : "-"});
  }
  return table;
}

}  // namespace

KernelRows read_kernel_rows(std::istream& lines, const std::string& name) {
  KernelRows run;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    try {
      json object = json::parse(line);
      if (object.contains("roofline")) {
        run.roofline = object["roofline"];
        run.roofline.at("copy_gb_s").get<double>();
        run.roofline.at("matmul_tflop_s").get<std::map<std::string, double>>();
      } else if (!object.contains("timed")) {
        row_of(object);
        run.rows.push_back(std::move(object));
      }
    } catch (const json::exception& error) {
      WEFT_FAIL("{}, line {}: no row of the kernel benches: {}", name, number, error.what());
    }
  }
  WEFT_CHECK(!run.rows.empty(), "{}: no timed kernels", name);
  return run;
}

report::Page kernel_page(const KernelRows& run) {
  std::vector<Row> rows;
  for (const json& object : run.rows) rows.push_back(row_of(object));
  const bool has_roofline = !run.roofline.is_null();
  report::Page page("Kernels", has_roofline ? run.roofline.value("name", "") : std::string());
  if (has_roofline) {
    std::vector<std::string> peaks;
    for (const auto& [dtype, peak] : run.roofline.at("matmul_tflop_s").items()) {
      peaks.push_back(fmt::format("{:.3g} TFLOP/s in {}", peak.get<double>(), dtype));
    }
    page.paragraph(
        fmt::format("Ceilings, measured in the same run: memory is copied at {:.3g} GB/s, "
                    "both directions counted; matrices are multiplied at {}.",
                    run.roofline.at("copy_gb_s").get<double>(), fmt::join(peaks, ", ")));
  }
  page.paragraph(
      fmt::format("{} kernels on {} cases. Times are medians from a cold cache, the variants of a "
                  "case taking turns.",
                  rows.size(), best_of_cases(rows, [](const Row&) { return true; }).size()));
  if (has_roofline) {
    add_roofline(page, run, rows);
    add_shares(page, rows);
  }
  add_vendor_ratios(page, rows);
  add_ladder(page, rows);
  page.heading("Every row");
  page.add(table_of(rows));
  return page;
}

}  // namespace weft::cli
