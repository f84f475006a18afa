// weft plan: step time, memory and scaling of the strategies on a cluster, the best first.
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/plan/prediction.h"
#include "cli/step/ranked_step.h"
#include "io/nearest.h"
#include "io/progress.h"
#include "models/registry.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments : PlanOptions {
  std::string html;
  bool json = false;
};

ordered_json json_of(const Demand& demand, const Prediction& p) {
  const PlanOptions& a = demand.options;
  const dist::Cluster& cluster = demand.cluster;
  return {{"strategy", p.strategy},
          {"model", a.model},
          {"accelerator", cluster.accelerator.name},
          {"network", cluster.network.name},
          {"devices", a.devices},
          {"nodes", a.nodes},
          {"shard_size", p.sharing.shard},
          {"copies", p.sharing.replicas},
          {"tensor_parallel", p.sharing.tensor},
          {"sequence_parallel", p.sharing.deals_out_tokens},
          {"pipeline_stages", p.sharing.stages},
          {"micro_batches", p.sharing.stages > 1 ? p.sharing.micro_batches : 1},
          {"batch", a.batch},
          {"precision", a.precision},
          {"step_seconds", p.timeline.end},
          {"computation_seconds", p.timeline.computation},
          {"communication_seconds", p.timeline.communication},
          {"images_per_second", p.images_per_second},
          {"scaling_efficiency", p.efficiency},
          {"flops_utilization", p.utilization},
          {"memory_bytes", p.memory},
          {"state_bytes", p.kept},
          {"activation_bytes", demand.activation_bytes},
          {"optimizer", a.optimizer},
          {"device_bytes", cluster.accelerator.memory},
          {"fits", p.fits}};
}

int run(const Arguments& a) {
  dist::Cluster cluster;
  as_usage([&] {
    cluster.accelerator = dist::find_accelerator(a.accelerator);
    cluster.network = dist::find_network(a.network);
    WEFT_CHECK(a.devices % a.nodes == 0, "{} devices cannot be dealt out evenly to {} nodes",
               a.devices, a.nodes);
    cluster.devices_per_node = a.devices / a.nodes;
    const dist::StrategyOptions& settings = a.settings;
    const int shard = settings.shard_size;
    if (shard > 0) {
      WEFT_CHECK(a.devices % shard == 0, "shard-size {} does not divide {} devices", shard,
                 a.devices);
      WEFT_CHECK(shard % cluster.devices_per_node == 0 || cluster.devices_per_node % shard == 0,
                 "shard-size {} and {} devices a node do not fit together: one must divide the "
                 "other",
                 shard, cluster.devices_per_node);
    }
    for (const auto& [setting, value] : {std::pair("tensor-parallel", settings.tensor_parallel),
                                         std::pair("pipeline-stages", settings.pipeline_stages)}) {
      WEFT_CHECK(value == 0 || a.devices % value == 0, "{} {} does not divide {} devices", setting,
                 value, a.devices);
    }
    const auto names = models::model_names();
    WEFT_CHECK(std::ranges::count(names, a.model) == 1, "unknown model \"{}\"; expected {}{}",
               a.model, fmt::join(names, ", "), io::did_you_mean(a.model, names));
  });
  const Demand demand = demand_of(a, cluster);
  const std::vector<Prediction> predictions = predict_all(demand);
  if (!a.html.empty()) write_plan_report(a.html, demand, predictions);
  if (a.json) {
    for (const Prediction& p : predictions) print_json(json_of(demand, p));
    return 0;
  }
  fmt::print(
      "{}: {} parameters, {} images a device, {}\n{} x {} {}, {}\nPredicted, not measured. "
      "Activations of a device alone: {:.2f} GB.\n\n",
      a.model, demand.layout.parameters, a.batch, a.precision, a.nodes, cluster.devices_per_node,
      cluster.accelerator.title, cluster.network.title,
      1e-9 * static_cast<double>(demand.activation_bytes));
  io::Table table({{"strategy", 8, io::Table::Align::kLeft},
                   {"devices", 26, io::Table::Align::kLeft},
                   {"step", 10},
                   {"images/s", 10},
                   {"scaling", 7},
                   {"of peak", 7},
                   {"memory", 9},
                   {"fits", 4}});
  for (const Prediction& p : predictions) {
    table.row(
        {p.strategy, describe(p.sharing), fmt::format("{:.2f} ms", 1e3 * p.timeline.end),
         fmt::format("{:.0f}", p.images_per_second), fmt::format("{:.1f}%", 100 * p.efficiency),
         fmt::format("{:.1f}%", 100 * p.utilization),
         fmt::format("{:.2f} GB", 1e-9 * static_cast<double>(p.memory)), p.fits ? "yes" : "no"});
  }
  fmt::print(
      "\nscaling: the time of one device alone over the step's, above 100% where ranks share the "
      "update. of peak: FLOPs of the products over the data sheet's.\nmemory: on the fullest "
      "device, of {:.0f} GB.\n",
      1e-9 * cluster.accelerator.memory);
  return 0;
}

}  // namespace

void add_plan(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run, "plan", "Predict a training step's time, memory and scaling on a cluster",
      kDeviceCommands);
  command.group("Step");
  command.option("--model", a.model, kModelHelp);
  command.option("--batch-size,--batch", a.batch, "Images in the batch of each device",
                 {.check = positive()});
  command.option("--precision", a.precision, "Format of matrix products: bf16 or fp32",
                 {.check = one_of({"bf16", "fp32"})});
  command.option("--optimizer", a.optimizer,
                 fmt::format("{}", fmt::join(optim::optimizer_names(), ", ")),
                 {.check = one_of(optim::optimizer_names())});

  command.group("Cluster");
  command.option("--devices", a.devices, "Number of devices of all nodes together",
                 {.check = in_range(1, 1 << 20), .usual = "", .required = true});
  command.option("--nodes", a.nodes, "Number of nodes that hold them",
                 {.check = in_range(1, 1 << 20)});
  command.option("--accelerator", a.accelerator,
                 fmt::format("The device: {}", fmt::join(dist::accelerator_names(), ", ")));
  command.option("--network", a.network,
                 fmt::format("Network between nodes: {}, or LATENCYus,BANDWIDTHGB/s of each device",
                             fmt::join(dist::network_names(), ", ")));
  command.option("--efficiency", a.efficiency,
                 "Share of the data sheet's FLOP rate that matrix products reach",
                 {.check = in_range(0.01, 1.0)});

  using dist::Settings;
  add_strategy_settings(
      command, a.settings,
      {{Settings::kShardSize, "a node's devices"},
       {Settings::kTensorParallel, "as many of a node, up to 8, as the model can be split over"},
       {Settings::kSequenceParallel, ""},
       {Settings::kPipelineStages,
        "as many devices of a node, up to 8, as the model can be split into"},
       {Settings::kMicroBatches, "two per stage"}});
  for (const char* cut : {"--tensor-parallel", "--pipeline-stages"}) {
    command.add_check(cut, in_range(2, 1024));
  }

  command.group("Output");
  command.option("--html", a.html, "Write the scaling as a page of plots to this file",
                 {.takes = "FILE"});
  command.flag("--json", a.json, "Print a JSON object for each strategy, the best first");
}

}  // namespace weft::cli
