// What `weft numerics train` found, as tables, JSON and a page.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cli/json_line.h"
#include "cli/numerics/train.h"

namespace weft::cli {
namespace {

report::Table run_table(const TrainResult& result) {
  report::Table table = {.columns = {"precision", "loss, last 10", "val loss", "val accuracy",
                                     "weights apart", "loss scale", "skipped steps"},
                         .caption = "At the end"};
  for (const TrainRun& run : result.runs) {
    double loss = 0;
    const size_t tail = std::min<size_t>(10, run.steps.size());
    for (size_t i = run.steps.size() - tail; i < run.steps.size(); ++i) {
      loss += run.steps[i].loss / static_cast<double>(tail);
    }
    table.rows.push_back(
        {run.name, run.diverged ? "diverged" : fmt::format("{:.4f}", loss),
         fmt::format("{:.4f}", run.validation.loss),
         fmt::format("{:.1f}%", 100 * run.validation.accuracy),
         run.divergence.empty() ? "-" : fmt::format("{:.2e}", run.divergence.back()),
         fmt::format("{:g}", run.steps.back().scale), std::to_string(run.skipped())});
  }
  return table;
}

/// Of a layer's elements: zero in f32; zero and subnormal in fp16; zero, subnormal and not finite
/// in fp16 with the loss scaled.
struct GradientShares {
  std::string layer;
  int64_t elements;
  std::array<double, 6> shares;
};

std::vector<GradientShares> shares_of(const GradientReport& g) {
  std::vector<GradientShares> layers;
  for (size_t i = 0; i < std::min({g.f32.size(), g.f16.size(), g.scaled.size()}); ++i) {
    const GradientCount &f32 = g.f32[i], &f16 = g.f16[i], &scaled = g.scaled[i];
    layers.push_back({f32.layer,
                      f32.elements,
                      {f32.share(f32.zero), f16.share(f16.zero), f16.share(f16.subnormal),
                       scaled.share(scaled.zero), scaled.share(scaled.subnormal),
                       scaled.share(scaled.not_finite)}});
  }
  return layers;
}

report::Table gradient_table(const GradientReport& g) {
  const std::string scaled = fmt::format("x {:g}", g.scale);
  report::Table table = {
      .columns = {"gradient of", "zero, fp32", "zero, fp16", "subnormal, fp16", "zero, " + scaled,
                  "subnormal, " + scaled, "infinite or NaN, " + scaled},
      .caption = "Shares of the elements; layers in the order of the forward pass"};
  for (const auto& [layer, elements, shares] : shares_of(g)) {
    table.rows.push_back({layer});
    for (const double share : shares) {
      table.rows.back().push_back(share == 0 ? "0" : fmt::format("{:.3g}%", 100 * share));
    }
  }
  return table;
}

/// The mean over the last `window` steps, at each step.
report::Series smoothed(const TrainRun& run, double TrainStep::*value, int window, int color) {
  report::Series series = {.name = run.name, .color = color};
  double sum = 0;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    sum += run.steps[i].*value;
    if (i >= static_cast<size_t>(window)) sum -= run.steps[i - window].*value;
    series.x.push_back(static_cast<double>(i + 1));
    series.y.push_back(sum / static_cast<double>(std::min<size_t>(i + 1, window)));
  }
  return series;
}

void print_objects(const TrainResult& result) {
  for (const TrainRun& run : result.runs) {
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const auto& [loss, accuracy, scale, skipped] = run.steps[i];
      print_json({{"run", run.name},
                  {"step", i + 1},
                  {"loss", loss},
                  {"accuracy", accuracy},
                  {"scale", scale},
                  {"skipped", skipped}});
    }
    for (size_t i = 0; i < run.divergence.size(); ++i) {
      print_json({{"run", run.name},
                  {"step", run.divergence_steps[i]},
                  {"divergence", run.divergence[i]}});
    }
  }
  for (const auto& [layer, elements, shares] : shares_of(result.gradients)) {
    print_json({{"layer", layer},
                {"elements", elements},
                {"fp32_zero", shares[0]},
                {"fp16_zero", shares[1]},
                {"fp16_subnormal", shares[2]},
                {"scale", result.gradients.scale},
                {"scaled_zero", shares[3]},
                {"scaled_subnormal", shares[4]},
                {"scaled_not_finite", shares[5]}});
  }
  for (const TrainRun& run : result.runs) {
    print_json({{"run", run.name},
                {"steps", run.steps.size()},
                {"diverged", run.diverged},
                {"skipped", run.skipped()},
                {"val_loss", run.validation.loss},
                {"val_accuracy", run.validation.accuracy}});
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
      plot->series.push_back(smoothed(run, value, kWindow, color));
    }
    if (color > 0) {
      apart.series.push_back({.name = run.name,
                              .x = {run.divergence_steps.begin(), run.divergence_steps.end()},
                              .y = run.divergence,
                              .color = color});
    }
    if (run.steps.front().scale != 1) {
      scale.series.push_back(smoothed(run, &TrainStep::scale, 1, color));
    }
    ++color;
  }
  page.add(loss);
  page.add(accuracy);
  page.add(run_table(result));
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
  for (const auto& [layer, elements, shares] : shares_of(result.gradients)) {
    zeros.categories.push_back(layer);
    zeros.groups[0].values.push_back(100 * shares[0]);
    zeros.groups[1].values.push_back(100 * shares[1]);
    zeros.groups[2].values.push_back(100 * shares[3]);
  }
  page.add(zeros);
  page.add(gradient_table(result.gradients));
  finish_page(page, a,
              fmt::format("train --precisions {} --model {} --data {} --steps {} --batch-size {} "
                          "--lr {:g} --seed {} --loss-scale {:g} --loss-factor {:g} "
                          "--matmul-numerics {}",
                          fmt::join(a.precisions, ","), a.model, a.data, a.steps, a.batch_size,
                          a.lr, a.seed, a.loss_scale, a.loss_factor, a.matmul_numerics));
}

}  // namespace

void report_training(const TrainResult& result, const TrainArguments& a) {
  if (a.json) {
    print_objects(result);
  } else {
    print_table(run_table(result));
    fmt::print("\nGradients of each product's result, one batch, last weights of {}:\n",
               result.runs[0].name);
    print_table(gradient_table(result.gradients));
  }
  if (!a.html.empty()) write_page(result, a);
}

}  // namespace weft::cli
