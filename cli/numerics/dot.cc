// weft numerics dot: errors of dot products against the exact result, for growing K.
#include <fmt/ranges.h>

#include <cmath>

#include "cli/json_line.h"
#include "cli/numerics/models.h"
#include "cli/numerics/numerics.h"
#include "cli/report/html_report.h"
#include "core/parallel.h"
#include "numerics/tensor_core_vectors.h"

namespace weft::cli {
namespace {

struct Arguments : Output {
  std::string format = "bf16";
  std::vector<std::string> models, distributions;
  int64_t max_k = 16384;
  int samples = 32;
  uint64_t seed = 1;
};

/// Errors over sum |a||b|, of `samples` dot products.
struct Point {
  int64_t k = 0;
  double mean = 0, largest = 0, bound = 0;
  /// Mean of (|computed| - |exact|) / sum |a||b|: negative where truncation shortens results.
  double bias = 0;
};

struct Curve {
  std::string distribution, model;
  std::vector<Point> points;
};

std::vector<int64_t> sizes(const Arguments& a) {
  std::vector<int64_t> result;
  for (int64_t k = 16; k <= a.max_k; k *= 2) result.push_back(k);
  return result;
}

std::vector<Curve> measure(const Arguments& a, DType format) {
  std::vector<AccumulationModel> models;
  for (const std::string& name : a.models) {
    models.push_back(as_usage([&] { return AccumulationModel(name, format); }));
  }
  std::vector<Curve> curves;
  for (const std::string& distribution : a.distributions) {
    const size_t first = curves.size();
    for (const AccumulationModel& model : models)
      curves.push_back({distribution, model.name(), {}});
    for (const int64_t k : sizes(a)) {
      std::vector<std::vector<double>> errors(models.size(), std::vector<double>(a.samples));
      auto biases = errors;
      parallel_for(a.samples, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const Operands x = draw_operands(distribution, format, k, a.seed,
                                           static_cast<uint64_t>(k * a.samples + i));
          const ExactDot exact = exact_dot(x.a, x.b);
          const double scale = exact.magnitude > 0 ? exact.magnitude : 1;
          for (size_t m = 0; m < models.size(); ++m) {
            const double computed = models[m].dot(x.a, x.b);
            errors[m][i] = std::abs(computed - exact.value) / scale;
            biases[m][i] = (std::abs(computed) - std::abs(exact.value)) / scale;
          }
        }
      });
      for (size_t m = 0; m < models.size(); ++m) {
        Point point = {.k = k, .bound = models[m].bound(static_cast<double>(k), 1)};
        for (int i = 0; i < a.samples; ++i) {
          point.mean += errors[m][i] / a.samples;
          point.bias += biases[m][i] / a.samples;
          point.largest = std::max(point.largest, errors[m][i]);
        }
        curves[first + m].points.push_back(point);
      }
    }
  }
  return curves;
}

/// Of each curve its last point.
report::Table table_of(const std::vector<Curve>& curves) {
  report::Table table = {.columns = {"distribution", "model", "K", "mean error", "largest", "bias",
                                     "bound", "largest / bound"},
                         .caption =
                             "Relative to sum |a||b|. Bias is the mean of |computed| - "
                             "|exact|: below zero where results are too short."};
  for (const auto& [distribution, model, points] : curves) {
    const Point& p = points.back();
    table.rows.push_back({distribution, model, std::to_string(p.k), fmt::format("{:.2e}", p.mean),
                          fmt::format("{:.2e}", p.largest), fmt::format("{:.1e}", p.bias),
                          fmt::format("{:.2e}", p.bound),
                          fmt::format("{:.1e}", p.largest / p.bound)});
  }
  return table;
}

/// Error from rounding the operands to a format, beside error from accumulating them.
void add_formats(report::Page& page, const Arguments& a) {
  report::BarChart chart = {
      .title = fmt::format("Rounding the operands against accumulating them, K = {}", a.max_k),
      .x = {.label = "mean error / sum |a||b|", .scale = report::Scale::kLog10},
      .groups = {{"rounding f32 operands to the format", {}},
                 {"accumulation on h100", {}},
                 {"accumulation on h100, promoted to f32 every 128", {}}},
      .caption =
          "Normal operands. The first bar: exact dot products of rounded and of unrounded "
          "operands. The others: the tensor core's result and the exact one of the same "
          "rounded operands."};
  for (const char* name : {"tf32", "fp16", "bf16", "e4m3", "e5m2"}) {
    const DType format = numerics::parse_operand_format(name);
    const AccumulationModel chain("h100", format), promoted("h100+128", format);
    std::vector<double> errors[3];
    for (auto& e : errors) e.resize(a.samples);
    parallel_for(a.samples, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Operands wide = draw_operands("normal", DType::f32, a.max_k, a.seed,
                                            (uint64_t{1} << 40) + static_cast<uint64_t>(i));
        Operands narrow = wide;
        for (std::vector<float>* values : {&narrow.a, &narrow.b}) {
          for (float& x : *values) x = round_to(x, format);
        }
        const ExactDot before = exact_dot(wide.a, wide.b), after = exact_dot(narrow.a, narrow.b);
        errors[0][i] = std::abs(after.value - before.value) / before.magnitude;
        errors[1][i] = std::abs(chain.dot(narrow.a, narrow.b) - after.value) / after.magnitude;
        errors[2][i] = std::abs(promoted.dot(narrow.a, narrow.b) - after.value) / after.magnitude;
      }
    });
    chart.categories.push_back(name);
    for (int g = 0; g < 3; ++g) {
      double mean = 0;
      for (const double e : errors[g]) mean += e / a.samples;
      chart.groups[g].values.push_back(mean);
    }
  }
  page.heading("By format");
  page.add(chart);
}

void write_page(const std::vector<Curve>& curves, const Arguments& a) {
  report::Page page(
      "Errors of dot products",
      fmt::format("{} operands, {} samples a point, seed {}", a.format, a.samples, a.seed));
  page.paragraph(
      "Each point is the mean of |computed - exact| / sum |a||b|. The exact result is summed in a "
      "fixed-point number without rounding. Dashed lines are derived bounds, which no sample may "
      "exceed: Higham's gamma for f32 sums, the analysis of docs/numerics.md for tensor cores. "
      "Tensor cores truncate, so their errors add up in proportion to K where products have one "
      "sign; rounding to nearest lets them grow like the square root.");
  for (const std::string& distribution : a.distributions) {
    report::LinePlot plot = {
        .title = distribution + " operands",
        .x = {.label = "K", .unit = "products", .scale = report::Scale::kLog2},
        .y = {.label = "error / sum |a||b|", .scale = report::Scale::kLog10},
        .caption = "Lines with points: mean errors. Dashed, in the same colour: the bound."};
    int color = 0;
    std::vector<report::Series> bounds;
    for (const Curve& curve : curves) {
      if (curve.distribution != distribution) continue;
      report::Series mean = {
          .name = curve.model, .mark = report::Mark::kLineAndPoints, .color = color};
      report::Series bound = {.name = curve.model + ", bound",
                              .mark = report::Mark::kDashed,
                              .color = color,
                              .in_legend = false};
      for (const Point& p : curve.points) {
        mean.x.push_back(static_cast<double>(p.k));
        bound.x.push_back(static_cast<double>(p.k));
        mean.y.push_back(p.mean);
        bound.y.push_back(p.bound);
      }
      plot.series.push_back(mean);
      bounds.push_back(bound);
      ++color;
    }
    plot.series.insert(plot.series.end(), bounds.begin(), bounds.end());
    page.add(plot);
  }
  page.heading(fmt::format("At K = {}", sizes(a).back()));
  page.add(table_of(curves));
  add_formats(page, a);
  finish_page(page, a,
              fmt::format("dot --format {} --models {} --distributions {} --max-k {} --samples {} "
                          "--seed {}",
                          a.format, fmt::join(a.models, ","), fmt::join(a.distributions, ","),
                          a.max_k, a.samples, a.seed));
}

int run(Arguments a) {
  const DType format = as_usage([&] { return numerics::parse_operand_format(a.format); });
  if (a.models.empty()) a.models = default_models(format);
  const std::vector<Curve> curves = measure(a, format);
  if (a.json) {
    for (const Curve& curve : curves) {
      for (const Point& p : curve.points) {
        print_json({{"format", a.format},
                    {"distribution", curve.distribution},
                    {"model", curve.model},
                    {"k", p.k},
                    {"mean", p.mean},
                    {"max", p.largest},
                    {"bias", p.bias},
                    {"bound", p.bound}});
      }
    }
  } else {
    print_table(table_of(curves), {12, 9, 6, 10, 10, 8}, 2);
    fmt::print("\nErrors and bounds are relative to sum |a||b|.\n");
  }
  if (!a.html.empty()) write_page(curves, a);
  return 0;
}

}  // namespace

void add_numerics_dot(Command& numerics, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      numerics, action, run, "dot", "Measure errors of dot products, beside their bounds");
  a.distributions.assign(std::begin(kDistributions), std::end(kDistributions));
  command.option("--format", a.format, kFormatHelp);
  command.option("--models", a.models, fmt::format("Ways to add the products: {}", kModelsHelp),
                 {.usual = "those that take the format", .delimiter = ','});
  command.option("--distributions", a.distributions,
                 "Distributions of the operands: normal, uniform in [0, 1), wide (magnitudes "
                 "spread over 2^16), cancel (sums near zero)",
                 {.check = one_of(a.distributions), .delimiter = ','});
  command.option("--max-k", a.max_k, "The longest dot product; lengths double from 16",
                 {.check = in_range(16, 1 << 20)});
  command.option("--samples", a.samples, "Dot products of each length",
                 {.check = in_range(1, 100000)});
  command.option("--seed", a.seed, "Seed of the operands");
  add_output_options(command, a,
                     "Print a JSON object for each distribution, way to add and length");
}

}  // namespace weft::cli
