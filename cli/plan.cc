// weft plan: how long a step would take on machines that are not here, and what it would need.
//
// Time: a roofline of the model's products and of the bytes that its other operations move, laid
// out by each strategy's schedule (dist/step_time.h) beside collectives in an alpha-beta model of
// the cluster (dist/cluster.h). Memory: the strategies' formulas (dist/cost.h), and activations,
// which are counted here in a step on one image and in one on two: they are a constant and so much
// an image. `weft bench plan` holds the same predictions against runs on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "autograd/autocast.h"
#include "cli/command.h"
#include "cli/ranked_step.h"
#include "cli/report/html_report.h"
#include "dist/cluster.h"
#include "dist/in_process.h"
#include "train/progress.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string model = "vit_b_16", accelerator = "h100", network, precision = "bf16", html;
  int devices = 0, nodes = 1, shard_size = 0;
  int64_t batch = 128;
  double efficiency = dist::Efficiency{}.products;
  bool json = false;
};

/// A model's demands, whatever the cluster.
struct Demand {
  dist::ModelLayout layout;
  std::vector<dist::Product> products;  // of `batch` images
  double forward_flops = 0;             // likewise
  int64_t activations = 0;              // bytes, likewise
};

struct Prediction {
  std::string strategy;
  dist::Sharing sharing;
  dist::Timeline timeline;
  int64_t memory = 0;  // bytes, activations included
  dist::StateBytes state;
  bool fits = true;
  double images_per_second = 0, efficiency = 0, utilization = 0;
};

/// Activations of steps on one image and on two, as the allocator counts them.
int64_t activations_of(const Arguments& a) {
  std::vector<int64_t> bytes;
  for (int64_t batch : {1, 2}) {
    const auto world = dist::make_in_process_world(1);
    RankedStep step({.model = a.model, .strategy = "single", .batch = batch}, world[0]);
    const Autocast mode(a.precision == "bf16" ? DType::bf16 : DType::f32);
    step.run();
    bytes.push_back(step.account().bytes(MemoryKind::kActivations).peak);
  }
  return bytes[0] + (a.batch - 1) * (bytes[1] - bytes[0]);
}

Demand demand_of(const Arguments& a) {
  Demand demand;
  demand.layout = layout_of_model({.model = a.model});
  const auto model = models::make_model(a.model);
  for (const models::Matmul& f : model->forward_matmuls(a.batch)) {
    demand.products.push_back({static_cast<double>(f.m), static_cast<double>(f.n),
                               static_cast<double>(f.k), static_cast<double>(f.batch * f.count)});
    demand.forward_flops += f.flops();
  }
  demand.activations = activations_of(a);
  return demand;
}

Prediction predict(const Arguments& a, const Demand& demand, const dist::Cluster& cluster,
                   const std::string& strategy, int devices) {
  Prediction p{.strategy = strategy,
               .sharing = dist::sharing_of(
                   strategy, devices,
                   a.shard_size > 0 ? a.shard_size : std::min(devices, cluster.devices_per_node))};
  const int element = a.precision == "bf16" ? 2 : 4;
  // Besides the products every activation is written once and read once in a forward pass.
  const dist::StepWork::Pass pass = dist::roofline(cluster.accelerator, demand.products,
                                                   2.0 * static_cast<double>(demand.activations),
                                                   element, {.products = a.efficiency});
  // AdamW reads parameter, gradient and both moments, and writes all but the gradient.
  const double updated = static_cast<double>(demand.layout.parameters) / p.sharing.shard;
  const double optimizer =
      28 * updated / (dist::Efficiency{}.memory * cluster.accelerator.memory_bandwidth);
  p.timeline = dist::step_timeline(strategy, demand.layout, p.sharing,
                                   dist::deal_out(pass, demand.layout, optimizer),
                                   cluster.seconds(p.sharing));
  p.state = dist::state_bytes(strategy, demand.layout, p.sharing);
  p.memory = dist::peak_bytes(strategy, demand.layout, p.sharing, demand.activations);
  p.fits = static_cast<double>(p.memory) <= cluster.accelerator.memory;
  const double images = static_cast<double>(a.batch) * devices;
  p.images_per_second = images / p.timeline.end;
  // Against a device alone, on as many images each.
  p.efficiency = p.timeline.computation / p.timeline.end;
  const double peak =
      element == 2 ? cluster.accelerator.bf16_flops : cluster.accelerator.fp32_flops;
  p.utilization = 3 * demand.forward_flops / p.timeline.end / peak;
  return p;
}

std::vector<Prediction> predict_all(const Arguments& a, const Demand& demand,
                                    const dist::Cluster& cluster, int devices) {
  std::vector<Prediction> all;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "fsdp", "hsdp"}) {
    // One group that all ranks share is fsdp.
    if (strategy == "hsdp" && a.shard_size == 0 && devices <= cluster.devices_per_node) {
      continue;
    }
    all.push_back(predict(a, demand, cluster, strategy, devices));
  }
  std::ranges::stable_sort(all, [](const Prediction& x, const Prediction& y) {
    return std::pair(!x.fits, x.timeline.end) < std::pair(!y.fits, y.timeline.end);
  });
  return all;
}

ordered_json json_of(const Arguments& a, const dist::Cluster& cluster, const Prediction& p,
                     const Demand& demand) {
  return {{"strategy", p.strategy},
          {"model", a.model},
          {"accelerator", cluster.accelerator.name},
          {"network", cluster.network.name},
          {"devices", a.devices},
          {"nodes", a.nodes},
          {"shard_size", p.sharing.shard},
          {"batch", a.batch},
          {"precision", a.precision},
          {"step_seconds", p.timeline.end},
          {"computation_seconds", p.timeline.computation},
          {"communication_seconds", p.timeline.communication},
          {"images_per_second", p.images_per_second},
          {"scaling_efficiency", p.efficiency},
          {"flops_utilization", p.utilization},
          {"memory_bytes", p.memory},
          {"state_bytes", p.state.total()},
          {"activation_bytes", demand.activations},
          {"device_bytes", cluster.accelerator.memory},
          {"fits", p.fits}};
}

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

void write_report(const Arguments& a, const Demand& demand, const dist::Cluster& cluster,
                  const std::vector<Prediction>& best_first) {
  report::Page page(fmt::format("{} on {} devices", a.model, a.devices),
                    fmt::format("{} x {} {}, {}", a.nodes, cluster.devices_per_node,
                                cluster.accelerator.title, cluster.network.title));
  page.paragraph(fmt::format(
      "Predicted, not measured: {} images a device and step, {} products at {:.0f}% of the data "
      "sheet's rate, collectives by latency and bandwidth, overlapped as each strategy's schedule "
      "allows.",
      a.batch, a.precision, 100 * a.efficiency));
  report::LinePlot scaling{
      .title = "Scaling at a fixed batch per device",
      .x = {.label = "devices", .unit = "", .scale = report::Scale::kLog2},
      .y = {.label = "images", .unit = "per second", .scale = report::Scale::kLog10},
      .caption = "Dashed: as many times one device's rate as there are devices."};
  report::LinePlot efficiency{
      .title = "Efficiency",
      .x = {.label = "devices", .unit = "", .scale = report::Scale::kLog2},
      .y = {.label = "share of perfect scaling", .unit = "%", .min = 0, .max = 100},
      .caption = "The computation's time over the step's."};
  report::LinePlot memory{
      .title = "Memory",
      .x = {.label = "devices", .unit = "", .scale = report::Scale::kLog2},
      .y = {.label = "peak on a device", .unit = "GB", .min = 0},
      .caption = "Parameters, gradients, AdamW's state, what is on its way, and activations."};
  const std::vector<int> devices = scales(cluster, a.devices);
  const double alone = predict(a, demand, cluster, "ddp", 1).images_per_second;
  report::Series ideal{.name = "perfect", .mark = report::Mark::kDashed};
  for (int n : devices) ideal.x.push_back(n), ideal.y.push_back(alone * n);
  int color = 0;
  for (const Prediction& strategy : best_first) {
    report::Series rate{
        .name = strategy.strategy, .mark = report::Mark::kLineAndPoints, .color = color++};
    report::Series share = rate, bytes = rate;
    for (int n : devices) {
      if (strategy.strategy == "hsdp" && n % strategy.sharing.shard != 0) continue;
      const Prediction p = predict(a, demand, cluster, strategy.strategy, n);
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
  report::Table table{.columns = {"strategy", "step", "images/s", "efficiency", "memory", "kept"}};
  for (const Prediction& p : best_first) {
    table.rows.push_back({p.strategy, fmt::format("{:.2f} ms", 1e3 * p.timeline.end),
                          fmt::format("{:.0f}", p.images_per_second),
                          fmt::format("{:.1f}%", 100 * p.efficiency),
                          fmt::format("{:.2f} GB", 1e-9 * static_cast<double>(p.memory)),
                          dist::state_formula(p.strategy)});
  }
  page.add(table);
  page.write(a.html);
}

int run(const Arguments& a) {
  dist::Cluster cluster;
  as_usage([&] {
    cluster.accelerator = dist::find_accelerator(a.accelerator);
    cluster.network = dist::find_network(a.network);
    WEFT_CHECK(a.devices % a.nodes == 0, "{} devices cannot be dealt out evenly to {} nodes",
               a.devices, a.nodes);
    cluster.devices_per_node = a.devices / a.nodes;
    if (a.shard_size > 0) {
      WEFT_CHECK(a.devices % a.shard_size == 0, "shard-size {} does not divide {} devices",
                 a.shard_size, a.devices);
      WEFT_CHECK(a.shard_size % cluster.devices_per_node == 0 ||
                     cluster.devices_per_node % a.shard_size == 0,
                 "shard-size {} and {} devices a node do not fit together: one must divide the "
                 "other",
                 a.shard_size, cluster.devices_per_node);
    }
    const auto names = models::model_names();
    WEFT_CHECK(std::ranges::count(names, a.model) == 1, "unknown model \"{}\"; expected {}",
               a.model, fmt::join(names, ", "));
  });
  const Demand demand = demand_of(a);
  const std::vector<Prediction> predictions = predict_all(a, demand, cluster, a.devices);
  if (!a.html.empty()) write_report(a, demand, cluster, predictions);
  if (a.json) {
    for (const Prediction& p : predictions) {
      fmt::print("{}\n", json_of(a, cluster, p, demand).dump());
    }
    return 0;
  }
  fmt::print(
      "{}: {} parameters, {} images a device, {}\n{} x {} {}, {}\npredicted, not measured; "
      "activations {:.2f} GB\n\n",
      a.model, demand.layout.parameters, a.batch, a.precision, a.nodes, cluster.devices_per_node,
      cluster.accelerator.title, cluster.network.title,
      1e-9 * static_cast<double>(demand.activations));
  train::Table table({{"strategy", 8, train::Table::Align::kLeft},
                      {"shard", 5},
                      {"step", 10},
                      {"images/s", 10},
                      {"scaling", 7},
                      {"of peak", 7},
                      {"hidden", 6},
                      {"memory", 9},
                      {"fits", 4}});
  for (const Prediction& p : predictions) {
    const double hidden =
        p.timeline.communication > 0
            ? std::max(0.0, p.timeline.serial() - p.timeline.end) / p.timeline.communication
            : 1;
    table.row(
        {p.strategy, std::to_string(p.sharing.shard),
         fmt::format("{:.2f} ms", 1e3 * p.timeline.end), fmt::format("{:.0f}", p.images_per_second),
         fmt::format("{:.1f}%", 100 * p.efficiency), fmt::format("{:.1f}%", 100 * p.utilization),
         fmt::format("{:.0f}%", 100 * hidden),
         fmt::format("{:.2f} GB", 1e-9 * static_cast<double>(p.memory)), p.fits ? "yes" : "no"});
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App& command = *app.add_subcommand(
      "plan", "Predict time, memory and scaling of a training step on a cluster");
  const auto a = std::make_shared<Arguments>();
  command.add_option("--model", a->model, "A model's name")->capture_default_str();
  command.add_option("--devices", a->devices, "Of all nodes together")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--nodes", a->nodes, "Machines that hold them")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--network", a->network,
                  fmt::format("Between nodes: {}, or LATENCYus,BANDWIDTHGB/s a device",
                              fmt::join(dist::network_names(), ", ")))
      ->default_str("infiniband-ndr");
  a->network = "infiniband-ndr";
  command
      .add_option("--accelerator", a->accelerator,
                  fmt::format("{}", fmt::join(dist::accelerator_names(), ", ")))
      ->capture_default_str();
  command.add_option("--batch", a->batch, "Images per device")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--precision", a->precision, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command
      .add_option("--efficiency", a->efficiency,
                  "Share of the data sheet's FLOP rate that products reach")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command.add_option("--shard-size", a->shard_size, "Of hsdp; default: a node's devices")
      ->check(CLI::PositiveNumber);
  command.add_option("--html", a->html, "Write the scaling as a page of plots");
  command.add_flag("--json", a->json, "One JSON object a line, the best strategy first");
  command.callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace weft::cli
