// weft numerics gemm: where in a matrix product the errors lie, and how near their bounds.
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "cli/json_line.h"
#include "cli/numerics/models.h"
#include "cli/numerics/numerics.h"
#include "cli/report/html_report.h"
#include "core/parallel.h"
#include "core/view.h"
#include "kernels/gemm/gemm.h"
#include "numerics/error_bounds.h"
#include "numerics/tensor_core_vectors.h"

namespace weft::cli {
namespace {

struct Arguments : Output {
  int m = 64, n = 64, k = 1024;
  std::string format = "bf16", distribution = "normal";
  std::vector<std::string> models;
  uint64_t seed = 1;
};

/// The name of the f32 product that the engine itself computes.
constexpr const char* kEngine = "weft";

struct Result {
  std::string model;
  /// Per element: |computed - exact| / sum |a||b|, and the error over its bound.
  std::vector<double> relative, of_bound;
  double mean = 0, largest = 0, largest_of_bound = 0;
};

struct Problem {
  int m, n, k;
  std::vector<float> a, b;  // [m, k], and b transposed: [n, k]
  std::vector<ExactDot> exact;

  /// f(i n + j, row i of a, column j of b) for every element.
  template <class F>
  void for_each(F&& f) const {
    parallel_for(m, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          f(i * n + j, std::span(a).subspan(i * k, k), std::span(b).subspan(j * k, k));
        }
      }
    });
  }
};

Problem make_problem(const Arguments& args, DType format) {
  Problem p{.m = args.m, .n = args.n, .k = args.k};
  // A stream of random numbers per row of a and column of b. Under "cancel" the second half of each
  // row undoes the first against the halves of any column.
  for (int i = 0; i < args.m; ++i) {
    const Operands row = draw_operands(args.distribution, format, args.k, args.seed, i);
    p.a.insert(p.a.end(), row.a.begin(), row.a.end());
  }
  for (int j = 0; j < args.n; ++j) {
    const Operands column =
        draw_operands(args.distribution, format, args.k, args.seed, (uint64_t{1} << 32) + j);
    p.b.insert(p.b.end(), column.b.begin(), column.b.end());
  }
  p.exact.resize(static_cast<size_t>(args.m) * args.n);
  p.for_each([&](int64_t i, auto row, auto column) { p.exact[i] = exact_dot(row, column); });
  return p;
}

/// The product on Weft's own kernels, in f32.
std::vector<float> engine_product(const Arguments& args, Problem& p) {
  const auto tensor = [](const std::vector<float>& values, Shape shape) {
    Tensor t = Tensor::empty(shape, DType::f32);
    std::copy(values.begin(), values.end(), t.data<float>());
    return t;
  };
  const Tensor a = tensor(p.a, {args.m, args.k}), b = tensor(p.b, {args.n, args.k});
  Tensor c = Tensor::empty({args.m, args.n}, DType::f32);
  kernels::gemm({.a = a, .b = view::transpose(b, 0, 1), .c = c});
  return {c.data<float>(), c.data<float>() + c.numel()};
}

Result measure(const std::string& name, const Arguments& args, DType format, Problem& p) {
  std::vector<float> c(p.exact.size());
  std::optional<AccumulationModel> model;
  if (name != kEngine) model = as_usage([&] { return AccumulationModel(name, format); });
  if (!model) {
    c = engine_product(args, p);
  } else if (model->tensor_core()) {
    numerics::tensor_core_gemm(*model->tensor_core(),
                               {.m = args.m,
                                .n = args.n,
                                .k = args.k,
                                .a = {p.a.data(), DType::f32, args.k, 1},
                                .b = {p.b.data(), DType::f32, 1, args.k},
                                .d = c.data(),
                                .d_row_stride = args.n,
                                .promotion_interval = model->promotion_interval()});
  } else {
    p.for_each([&](int64_t i, auto row, auto column) { c[i] = model->dot(row, column); });
  }
  Result result = {.model = name};
  for (size_t i = 0; i < c.size(); ++i) {
    const ExactDot& exact = p.exact[i];
    const double error = std::abs(c[i] - exact.value);
    const double bound =
        model ? model->bound(args.k, exact.magnitude)
              : numerics::sum_bound(args.k, unit_roundoff(DType::f32), exact.magnitude);
    result.relative.push_back(exact.magnitude > 0 ? error / exact.magnitude : 0);
    result.of_bound.push_back(bound > 0 ? error / bound : 0);
    result.mean += result.relative.back() / static_cast<double>(c.size());
    result.largest = std::max(result.largest, result.relative.back());
    result.largest_of_bound = std::max(result.largest_of_bound, result.of_bound.back());
  }
  return result;
}

std::vector<std::vector<double>> matrix(const std::vector<double>& values, int columns) {
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < values.size(); i += columns) {
    rows.emplace_back(values.begin() + static_cast<int64_t>(i),
                      values.begin() + static_cast<int64_t>(i) + columns);
  }
  return rows;
}

report::Table table_of(const std::vector<Result>& results) {
  report::Table table = {.columns = {"model", "mean error", "largest error", "largest / bound"},
                         .caption = "Errors relative to sum |a||b|."};
  for (const Result& r : results) {
    table.rows.push_back({r.model, fmt::format("{:.2e}", r.mean), fmt::format("{:.2e}", r.largest),
                          fmt::format("{:.1e}", r.largest_of_bound)});
  }
  return table;
}

void write_page(const std::vector<Result>& results, const Arguments& a) {
  report::Page page("Errors of a matrix product", fmt::format("{} x {} x {}, {} operands, {}", a.m,
                                                              a.n, a.k, a.format, a.distribution));
  page.paragraph(
      "Every element against its exact value. The bound of an element is derived from K and its "
      "own sum |a||b|; a ratio above 1 would be a fault in the arithmetic or in the theory.");
  report::LinePlot spread = {
      .title = "How near the bound the elements come",
      .x = {.label = "error / bound", .scale = report::Scale::kLog10, .min = 1e-6, .max = 1},
      .y = {.label = "share of the elements with less", .min = 0, .max = 1}};
  for (const Result& result : results) {
    std::vector<double> sorted = result.of_bound;
    std::ranges::sort(sorted);
    report::Series series = {.name = result.model};
    const size_t stride = std::max<size_t>(1, sorted.size() / 400);
    for (size_t i = 0; i < sorted.size(); i += stride) {
      series.x.push_back(std::max(sorted[i], 1e-6));
      series.y.push_back(static_cast<double>(i + 1) / static_cast<double>(sorted.size()));
    }
    spread.series.push_back(series);
  }
  page.add(spread);
  page.add(table_of(results));
  double low = HUGE_VAL, high = 0;
  for (const Result& r : results) {
    low = std::min(low, r.mean / 100);
    high = std::max(high, r.largest);
  }
  for (const Result& r : results) {
    page.heading(r.model);
    page.add(report::HeatMap{.title = "Error of each element",
                             .x_label = "column",
                             .y_label = "row",
                             .value = {.label = "error / sum |a||b|",
                                       .scale = report::Scale::kLog10,
                                       .min = std::pow(10, std::floor(std::log10(low))),
                                       .max = std::pow(10, std::ceil(std::log10(high)))},
                             .rows = matrix(r.relative, a.n),
                             .caption = "The same colours for every model."});
    page.add(report::HeatMap{.title = "Error over bound",
                             .x_label = "column",
                             .y_label = "row",
                             .value = {.label = "error / bound"},
                             .rows = matrix(r.of_bound, a.n)});
  }
  finish_page(
      page, a,
      fmt::format("gemm --m {} --n {} --k {} --format {} --distribution {} --models {} --seed {}",
                  a.m, a.n, a.k, a.format, a.distribution, fmt::join(a.models, ","), a.seed));
}

int run(Arguments a) {
  const DType format = as_usage([&] { return numerics::parse_operand_format(a.format); });
  if (a.models.empty()) {
    a.models = default_models(format);
    a.models.insert(a.models.begin(), kEngine);
  }
  Problem problem = make_problem(a, format);
  std::vector<Result> results;
  for (const std::string& name : a.models) results.push_back(measure(name, a, format, problem));
  if (a.json) {
    for (const Result& r : results) {
      print_json({{"model", r.model},
                  {"mean", r.mean},
                  {"max", r.largest},
                  {"max_of_bound", r.largest_of_bound}});
    }
  } else {
    print_table(table_of(results), {10});
  }
  if (!a.html.empty()) write_page(results, a);
  return 0;
}

}  // namespace

void add_numerics_gemm(Command& numerics, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      numerics, action, run, "gemm", "Measure errors of a matrix product, element by element");
  for (const auto& [name, size, text] : {std::tuple{"--m", &a.m, "Rows of the product"},
                                         {"--n", &a.n, "Columns of the product"},
                                         {"--k", &a.k, "Length of its dot products"}}) {
    command.option(name, *size, text, {.check = in_range(1, 4096)});
  }
  command.option("--format", a.format, kFormatHelp);
  command.option(
      "--distribution", a.distribution,
      "Distribution of the operands: normal, uniform, wide or cancel, as of numerics dot",
      {.check = one_of({std::begin(kDistributions), std::end(kDistributions)})});
  command.option(
      "--models", a.models,
      fmt::format("Ways to add the products: weft (the engine's f32 product), {}", kModelsHelp),
      {.usual = "those that take the format", .delimiter = ','});
  command.option("--seed", a.seed, "Seed of the operands");
  add_output_options(command, a, "Print a JSON object for each way to add");
}

}  // namespace weft::cli
