#include <fmt/format.h>

#include <algorithm>

#include "cli/plan/prediction.h"
#include "cli/report/html_report.h"

namespace weft::cli {
namespace {

/// Numbers of devices up to the one asked for: parts of a node, then nodes.
std::vector<int> scales(const dist::Cluster& cluster, int devices) {
  std::vector<int> result;
  for (int n = 1; n < std::min(cluster.devices_per_node, devices); n *= 2) {
    if (cluster.devices_per_node % n == 0) result.push_back(n);
  }
  for (int n = cluster.devices_per_node; n < devices; n *= 2) result.push_back(n);
  result.push_back(devices);
  return result;
}

}  // namespace

void write_plan_report(const std::string& path, const Demand& demand,
                       const std::vector<Prediction>& best_first) {
  const PlanOptions& a = demand.options;
  const dist::Cluster& cluster = demand.cluster;
  report::Page page(fmt::format("{} on {} devices", a.model, a.devices),
                    fmt::format("{} x {} {}, {}", a.nodes, cluster.devices_per_node,
                                cluster.accelerator.title, cluster.network.title));
  page.paragraph(fmt::format(
      "Predicted, not measured: {} images a device and step, {} products at {:.0f}% of the data "
      "sheet's rate, collectives by latency and bandwidth, overlapped as each strategy's schedule "
      "allows. Devices that share a layer or a pipeline take their images together.",
      a.batch, a.precision, 100 * a.efficiency));
  const auto plot = [](const char* title, const report::Axis& y, const char* caption) {
    return report::LinePlot{.title = title,
                            .x = {.label = "devices", .scale = report::Scale::kLog2},
                            .y = y,
                            .caption = caption};
  };
  report::LinePlot scaling =
      plot("Scaling at a fixed batch per device",
           {.label = "images", .unit = "per second", .scale = report::Scale::kLog10},
           "Dashed: as many times one device's rate as there are devices.");
  report::LinePlot efficiency = plot(
      "Efficiency", {.label = "share of perfect scaling", .unit = "%", .min = 0},
      "The time of one device alone over the step's; above 100% where ranks share the update.");
  report::LinePlot memory =
      plot("Memory", {.label = "peak on a device", .unit = "GB", .min = 0},
           "Parameters, gradients, the optimizer's state, what is on its way, and activations.");
  const std::vector<int> devices = scales(cluster, a.devices);
  const double alone = predict(demand, {.name = "ddp"}, 1).images_per_second;
  report::Series ideal{.name = "perfect", .mark = report::Mark::kDashed};
  for (int n : devices) ideal.x.push_back(n), ideal.y.push_back(alone * n);
  int color = 0;
  for (const Prediction& strategy : best_first) {
    report::Series rate{
        .name = strategy.strategy, .mark = report::Mark::kLineAndPoints, .color = color++};
    report::Series share = rate, bytes = rate;
    for (int n : devices) {
      const auto all = strategies_for(demand, n);
      const auto mine = std::ranges::find(all, strategy.strategy, &dist::StrategyOptions::name);
      if (mine == all.end()) continue;
      const Prediction p = predict(demand, *mine, n);
      for (report::Series* series : {&rate, &share, &bytes}) series->x.push_back(n);
      rate.y.push_back(p.images_per_second);
      share.y.push_back(100 * p.efficiency);
      bytes.y.push_back(1e-9 * static_cast<double>(p.memory));
    }
    scaling.series.push_back(rate);
    efficiency.series.push_back(share);
    memory.series.push_back(bytes);
  }
  ideal.color = color;
  scaling.series.push_back(ideal);
  page.add(scaling);
  page.add(efficiency);
  page.add(memory);
  report::Table table{
      .columns = {"strategy", "devices", "step", "images/s", "efficiency", "memory", "kept"}};
  for (const Prediction& p : best_first) {
    table.rows.push_back(
        {p.strategy, describe(p.sharing), fmt::format("{:.2f} ms", 1e3 * p.timeline.end),
         fmt::format("{:.0f}", p.images_per_second), fmt::format("{:.1f}%", 100 * p.efficiency),
         fmt::format("{:.2f} GB", 1e-9 * static_cast<double>(p.memory)),
         dist::find_strategy(p.strategy).state_formula()});
  }
  page.add(table);
  page.write(path);
}

}  // namespace weft::cli
