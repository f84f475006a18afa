// What `weft numerics train` found, as tables, JSON and a page.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/numerics/train.h"
#include "cli/report/html_report.h"
#include "io/progress.h"

namespace weft::cli {
namespace {

std::vector<std::string> run_cells(const TrainRun& run) {
  const TrainStep& last = run.steps.back();
  double loss = 0;
  const size_t tail = std::min<size_t>(10, run.steps.size());
  for (size_t i = run.steps.size() - tail; i < run.steps.size(); ++i) {
    loss += run.steps[i].loss / static_cast<double>(tail);
  }
  return {run.name,
          run.diverged ? "diverged" : fmt::format("{:.4f}", loss),
          fmt::format("{:.4f}", run.validation.loss),
          fmt::format("{:.1f}%", 100 * run.validation.accuracy),
          run.divergence.empty() ? "-" : fmt::format("{:.2e}", run.divergence.back()),
          fmt::format("{:g}", last.scale),
          std::to_string(run.skipped())};
}

const std::vector<std::string> kRunColumns = {"precision",    "loss, last 10", "val loss",
                                              "val accuracy", "weights apart", "loss scale",
                                              "skipped steps"};

std::vector<std::string> gradient_cells(const GradientReport& g, size_t i) {
  const auto percent = [](double share) {
    return share == 0 ? std::string("0") : fmt::format("{:.3g}%", 100 * share);
  };
  const GradientCount &f32 = g.f32[i], &f16 = g.f16[i], &scaled = g.scaled[i];
  return {f32.layer,
          percent(f32.share(f32.zero)),
          percent(f16.share(f16.zero)),
          percent(f16.share(f16.subnormal)),
          percent(scaled.share(scaled.zero)),
          percent(scaled.share(scaled.subnormal)),
          percent(scaled.share(scaled.not_finite))};
}

std::vector<std::string> gradient_columns(double scale) {
  const std::string scaled = fmt::format("x {:g}", scale);
  return {"gradient of",
          "zero, fp32",
          "zero, fp16",
          "subnormal, fp16",
          "zero, " + scaled,
          "subnormal, " + scaled,
          "infinite or NaN, " + scaled};
}

void print_table(const std::vector<std::string>& columns,
                 const std::vector<std::vector<std::string>>& rows) {
  std::vector<io::Table::Column> headings;
  for (size_t i = 0; i < columns.size(); ++i) {
    size_t width = columns[i].size();
    for (const auto& row : rows) width = std::max(width, row[i].size());
    headings.push_back({columns[i], static_cast<int>(width),
                        i == 0 ? io::Table::Align::kLeft : io::Table::Align::kRight});
  }
  io::Table table(headings);
  for (const auto& row : rows) table.row(row);
}

std::vector<std::vector<std::string>> run_rows(const TrainResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const TrainRun& run : result.runs) rows.push_back(run_cells(run));
  return rows;
}

std::vector<std::vector<std::string>> gradient_rows(const TrainResult& result) {
  const GradientReport& g = result.gradients;
  std::vector<std::vector<std::string>> rows;
  const size_t layers = std::min({g.f32.size(), g.f16.size(), g.scaled.size()});
  for (size_t i = 0; i < layers; ++i) rows.push_back(gradient_cells(g, i));
  return rows;
}

/// The mean over the last `window` steps, at each step.
report::Series smoothed(const TrainRun& run, double TrainStep::*value, int window) {
  report::Series series = {.name = run.name};
  double sum = 0;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    sum += run.steps[i].*value;
    if (i >= static_cast<size_t>(window)) sum -= run.steps[i - window].*value;
    series.x.push_back(static_cast<double>(i + 1));
    series.y.push_back(sum / static_cast<double>(std::min<size_t>(i + 1, window)));
  }
  return series;
}

}  // namespace

void print_tables(const TrainResult& result) {
  print_table(kRunColumns, run_rows(result));
  fmt::print("\nGradients of each product's result, one batch, last weights of {}:\n",
             result.runs[0].name);
  print_table(gradient_columns(result.gradients.scale), gradient_rows(result));
}

void print_json(const TrainResult& result) {
  using Json = nlohmann::ordered_json;
  for (const TrainRun& run : result.runs) {
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const TrainStep& s = run.steps[i];
      fmt::print("{}\n", Json({{"run", run.name},
                               {"step", i + 1},
                               {"loss", s.loss},
                               {"accuracy", s.accuracy},
                               {"scale", s.scale},
                               {"skipped", s.skipped}})
                             .dump());
    }
    for (size_t i = 0; i < run.divergence.size(); ++i) {
      fmt::print("{}\n", Json({{"run", run.name},
                               {"step", run.divergence_steps[i]},
                               {"divergence", run.divergence[i]}})
                             .dump());
    }
  }
  const GradientReport& g = result.gradients;
  for (size_t i = 0; i < gradient_rows(result).size(); ++i) {
    fmt::print("{}\n", Json({{"layer", g.f32[i].layer},
                             {"elements", g.f32[i].elements},
                             {"fp32_zero", g.f32[i].share(g.f32[i].zero)},
                             {"fp16_zero", g.f16[i].share(g.f16[i].zero)},
                             {"fp16_subnormal", g.f16[i].share(g.f16[i].subnormal)},
                             {"scale", g.scale},
                             {"scaled_zero", g.scaled[i].share(g.scaled[i].zero)},
                             {"scaled_subnormal", g.scaled[i].share(g.scaled[i].subnormal)},
                             {"scaled_not_finite", g.scaled[i].share(g.scaled[i].not_finite)}})
                           .dump());
  }
  for (const TrainRun& run : result.runs) {
    fmt::print("{}\n", Json({{"run", run.name},
                             {"steps", run.steps.size()},
                             {"diverged", run.diverged},
                             {"skipped", run.skipped()},
                             {"val_loss", run.validation.loss},
                             {"val_accuracy", run.validation.accuracy}})
                           .dump());
  }
}

void write_page(const TrainResult& result, const TrainArguments& a) {
  constexpr int kWindow = 10;
  report::Page page(
      "Training in several precisions",
      fmt::format("{} on {}, {} steps of {} images, AdamW with learning rate {:g}, "
                  "seed {}, products in {}",
                  a.model, a.data, a.steps, a.batch_size, a.lr, a.seed, a.matmul_numerics));
  page.paragraph(
      "All runs start from the same weights and see the same images in the same order; only the "
      "arithmetic differs. fp16 scales its loss dynamically, fp16-unscaled does not.");
  const report::Axis steps = {.label = "step"};
  report::LinePlot loss = {.title = "Loss",
                           .x = steps,
                           .y = {.label = "cross-entropy", .unit = "nats"},
                           .caption = fmt::format("Mean over {} steps.", kWindow)};
  report::LinePlot accuracy = {.title = "Training accuracy",
                               .x = steps,
                               .y = {.label = "accuracy", .unit = "share"},
                               .caption = fmt::format("Mean over {} steps.", kWindow)};
  report::LinePlot apart = {
      .title = fmt::format("Distance of the weights from those of {}", result.runs[0].name),
      .x = steps,
      .y = {.label = "||w - w'|| / ||w'||", .scale = report::Scale::kLog10},
      .caption =
          "Training amplifies any difference: what counts is that the losses stay together."};
  report::LinePlot scale = {.title = "Loss scale",
                            .x = steps,
                            .y = {.label = "scale", .scale = report::Scale::kLog2},
                            .caption =
                                "Halved, and the step skipped, when a gradient is infinite; "
                                "doubled after 2000 steps without."};
  int color = 0;
  for (const TrainRun& run : result.runs) {
    for (const auto& [plot, value] :
         {std::pair{&loss, &TrainStep::loss}, {&accuracy, &TrainStep::accuracy}}) {
      report::Series series = smoothed(run, value, kWindow);
      series.color = color;
      plot->series.push_back(series);
    }
    if (color > 0) {
      report::Series series = {.name = run.name, .color = color};
      series.x.assign(run.divergence_steps.begin(), run.divergence_steps.end());
      series.y = run.divergence;
      apart.series.push_back(series);
    }
    if (run.steps.front().scale != 1) {
      report::Series series = {.name = run.name, .color = color};
      for (size_t i = 0; i < run.steps.size(); ++i) {
        series.x.push_back(static_cast<double>(i + 1));
        series.y.push_back(run.steps[i].scale);
      }
      scale.series.push_back(series);
    }
    ++color;
  }
  page.add(loss);
  page.add(accuracy);
  page.add(report::Table{kRunColumns, run_rows(result), "At the end"});
  page.heading("How far apart the runs drift");
  if (!apart.series.empty()) page.add(apart);
  page.heading("Loss scaling");
  if (!scale.series.empty()) page.add(scale);
  page.paragraph(fmt::format(
      "Below: gradients of the result of every product, on one batch, at the last weights of {}. "
      "fp16 holds nothing below 2^-25: a gradient there becomes zero, and whatever would have "
      "flowed on from it is lost. Multiplying the loss by {:g} moves all of them up.",
      result.runs[0].name, a.loss_scale));
  report::BarChart zeros = {
      .title = "Gradients that underflow to zero",
      .x = {.label = "share of elements", .unit = "%", .min = 0, .max = 100},
      .groups = {{"zero in fp32 already", {}},
                 {"zero in fp16", {}},
                 {fmt::format("zero in fp16, loss x {:g}", a.loss_scale), {}}}};
  const GradientReport& g = result.gradients;
  for (size_t i = 0; i < gradient_rows(result).size(); ++i) {
    zeros.categories.push_back(g.f32[i].layer);
    zeros.groups[0].values.push_back(100 * g.f32[i].share(g.f32[i].zero));
    zeros.groups[1].values.push_back(100 * g.f16[i].share(g.f16[i].zero));
    zeros.groups[2].values.push_back(100 * g.scaled[i].share(g.scaled[i].zero));
  }
  page.add(zeros);
  page.add(report::Table{gradient_columns(a.loss_scale), gradient_rows(result),
                         "Shares of the elements; layers in the order of the forward pass"});
  page.heading("Repeat");
  std::string names;
  for (const std::string& name : a.precisions) names += (names.empty() ? "" : ",") + name;
  page.code(
      fmt::format("./weft numerics train --precisions {} --model {} --data {} --steps {} "
                  "--batch-size {} --lr {:g} --seed {} --loss-scale {:g} --loss-factor {:g} "
                  "--matmul-numerics {} --html {}",
                  names, a.model, a.data, a.steps, a.batch_size, a.lr, a.seed, a.loss_scale,
                  a.loss_factor, a.matmul_numerics, a.html));
  page.write(a.html);
}

}  // namespace weft::cli
