// weft plan: how long a step would take on machines that are not here, and what it would need.
//
// Time: a roofline of the model's products and of the bytes that its other operations move, laid
// out by each strategy's schedule (dist/step_time.h) beside collectives in an alpha-beta model of
// the cluster (dist/cluster.h). Memory: the strategies' formulas (dist/cost.h), and activations,
// which are counted here in steps of a model of two layers and of three on few images: they are a
// constant, so much an image, and so much an image and layer. `weft bench plan` holds the same
// predictions against runs on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

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
  int devices = 0, nodes = 1, shard_size = 0, tensor_parallel = 0, pipeline_stages = 0;
  int64_t batch = 128, micro_batches = 0;
  bool sequence_parallel = false;
  double efficiency = dist::Efficiency{}.products;
  bool json = false;

  int element_bytes() const { return precision == "bf16" ? 2 : 4; }
};

/// Bytes of activations: constant + images (per_image + layers per_layer).
struct Activations {
  double constant = 0, per_image = 0, per_layer = 0;

  int64_t bytes(double images, double layers) const {
    return static_cast<int64_t>(constant + images * (per_image + layers * per_layer));
  }
};

/// A model's demands, whatever the cluster.
struct Demand {
  int64_t layers = 0;  // of an encoder; 0: the model has none
  dist::ModelLayout layout;
  models::Matmuls matmuls;  // of one image
  Activations activations;
  // Of those that share a layer, each with its part; of a pipeline's stages.
  int tensor = 1, stages = 1;  // 1: the strategy does not fit the model and the cluster
  dist::ModelLayout cut;
  Activations cut_activations;
  std::vector<dist::ModelLayout> stage_layouts;

  int64_t activation_bytes(int64_t batch) const {
    return activations.bytes(static_cast<double>(batch), static_cast<double>(layers));
  }
};

struct Prediction {
  std::string strategy;
  dist::Sharing sharing;
  dist::Timeline timeline;
  int64_t memory = 0, kept = 0;  // bytes; with activations and without
  bool fits = true;
  double images_per_second = 0, efficiency = 0, utilization = 0;
};

/// The peak of activations on a rank in a step on `batch` images for each of those who share one,
/// as the allocator counts them.
double count_activations(const Arguments& a, const dist::StrategyOptions& strategy, int ranks,
                         int64_t batch, std::optional<int64_t> layers) {
  std::vector<double> bytes(ranks);
  dist::run_ranks(ranks, [&](dist::Communicator& world) {
    const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
    RankedStepOptions options{.model = a.model, .strategy = strategy, .batch = batch};
    options.options.layers = layers;
    RankedStep step(options, handle);
    const Autocast mode(a.precision == "bf16" ? DType::bf16 : DType::f32);
    step.run();
    bytes[world.rank()] = static_cast<double>(step.account().bytes(MemoryKind::kActivations).peak);
  });
  return *std::ranges::max_element(bytes);
}

Activations activations_of(const Arguments& a, const dist::StrategyOptions& strategy, int ranks,
                           bool has_layers) {
  const auto count = [&](int64_t batch, int64_t layers) {
    return count_activations(a, strategy, ranks, batch,
                             has_layers ? std::optional(layers) : std::nullopt);
  };
  // A batch is that of one device; those who share a layer take theirs together.
  const double few = count(1, 2), more = count(2, 2), deeper = has_layers ? count(1, 3) : few;
  Activations result;
  result.per_layer = (deeper - few) / ranks;
  result.per_image = (more - few) / ranks - 2 * result.per_layer;
  result.constant = few - ranks * (result.per_image + 2 * result.per_layer);
  return result;
}

/// The layouts of those who share a model so; none where that cannot be.
std::vector<dist::ModelLayout> layouts_if_possible(const Arguments& a,
                                                   const dist::StrategyOptions& strategy,
                                                   int ranks) {
  try {
    return layouts_of_model({.model = a.model, .strategy = strategy, .batch = 2}, ranks);
  } catch (const Error&) {
    return {};
  }
}

dist::StrategyOptions tensor_strategy(const Arguments& a) {
  return {.name = "tp", .sequence_parallel = a.sequence_parallel};
}

/// As many as share a node, at most eight, that the model can be cut for.
void choose_cuts(const Arguments& a, const dist::Cluster& cluster, Demand& demand) {
  constexpr int kMost = 8;
  const int near = cluster.devices_per_node > 1 ? cluster.devices_per_node : a.devices;
  const auto choose = [&](int asked, const char* setting, const dist::StrategyOptions& strategy,
                          std::vector<dist::ModelLayout>& layouts) {
    for (int n = asked > 0 ? asked : std::min(kMost, near); n > 1; --n) {
      if (near % n == 0 || n == asked) layouts = layouts_if_possible(a, strategy, n);
      if (!layouts.empty()) return n;
      WEFT_CHECK(asked == 0, "{} {}: {} cannot be cut so", setting, asked, a.model);
    }
    return 1;
  };
  std::vector<dist::ModelLayout> cut;
  demand.tensor = choose(a.tensor_parallel, "tensor-parallel", tensor_strategy(a), cut);
  if (demand.tensor > 1) {
    demand.cut = cut[0];
    demand.cut.activation_bytes = a.element_bytes();
    demand.cut_activations =
        activations_of(a, tensor_strategy(a), demand.tensor, demand.layers > 0);
  }
  demand.stages =
      choose(a.pipeline_stages, "pipeline-stages", {.name = "pipeline"}, demand.stage_layouts);
}

Demand demand_of(const Arguments& a, const dist::Cluster& cluster) {
  Demand demand;
  demand.layout = layout_of_model({.model = a.model});
  if (demand.layout.tokens > 0) demand.layers = static_cast<int64_t>(demand.layout.units.size());
  demand.matmuls = models::make_model(a.model)->forward_matmuls(1);
  demand.activations = activations_of(a, {}, 1, demand.layers > 0);
  choose_cuts(a, cluster, demand);
  return demand;
}

/// A forward pass's products on so many images; those of cut layers with a rank's part of them.
std::vector<dist::Product> products_of(const Demand& demand, double images, int tensor) {
  std::vector<dist::Product> products;
  for (const models::Matmul& f : demand.matmuls) {
    dist::Product p{static_cast<double>(f.m), static_cast<double>(f.n), static_cast<double>(f.k),
                    static_cast<double>(f.batch * f.count)};
    // Attention's are a batch of one an image and head, the others have images as rows.
    const bool is_attention = f.name == "scores" || f.name == "mixture";
    (is_attention ? p.count : p.m) *= images;
    if (is_attention) p.count /= tensor;
    if (f.name == "in_proj" || f.name == "mlp.0") p.n /= tensor;
    if (f.name == "out_proj" || f.name == "mlp.3") p.k /= tensor;
    products.push_back(p);
  }
  return products;
}

/// AdamW reads parameter, gradient and both moments, and writes all but the gradient.
double optimizer_seconds(const dist::Cluster& cluster, double parameters) {
  return 28 * parameters / (dist::Efficiency{}.memory * cluster.accelerator.memory_bandwidth);
}

/// Besides the products every activation is written once and read once in a forward pass.
dist::StepWork::Pass pass_of(const Arguments& a, const Demand& demand, const dist::Cluster& cluster,
                             double images, int tensor) {
  const Activations& activations = tensor > 1 ? demand.cut_activations : demand.activations;
  return dist::roofline(
      cluster.accelerator, products_of(demand, images, tensor),
      2.0 * static_cast<double>(activations.bytes(images, static_cast<double>(demand.layers))),
      a.element_bytes(), {.products = a.efficiency});
}

/// The stages of a pipeline whose devices take `batch` images each.
void predict_pipeline(const Arguments& a, const Demand& demand, const dist::Cluster& cluster,
                      Prediction& p) {
  const double images = static_cast<double>(a.batch * p.sharing.stages) /
                        static_cast<double>(p.sharing.micro_batches);
  const dist::StepWork work =
      dist::deal_out(pass_of(a, demand, cluster, images, 1), demand.layout, 0);
  const auto add = [](dist::StepWork::Pass& sum, const dist::StepWork::Pass& part) {
    sum.forward += part.forward, sum.backward += part.backward;
  };
  std::vector<dist::StageWork> stages;
  size_t unit = 0;
  for (int s = 0; s < p.sharing.stages; ++s) {
    const dist::ModelLayout& layout = demand.stage_layouts[s];
    const bool is_first = s == 0, is_last = s + 1 == p.sharing.stages;
    dist::StageWork stage{
        .given = a.element_bytes() * images * static_cast<double>(layout.given),
        .parameters = layout.parameters,
        .optimizer = optimizer_seconds(cluster, static_cast<double>(layout.parameters))};
    if (is_first) add(stage.pass, work.before);
    for (size_t i = 0; i < layout.units.size(); ++i) add(stage.pass, work.units.at(unit++));
    if (is_last) add(stage.pass, work.behind);
    stages.push_back(stage);
    // One forward, one backward: the first stages have the most under way.
    Activations mine = demand.activations;
    if (!is_first) mine.per_image = 0;
    const auto in_flight =
        static_cast<double>(std::min<int64_t>(p.sharing.stages - s, p.sharing.micro_batches));
    const int64_t activations =
        mine.bytes(in_flight * images, static_cast<double>(layout.units.size()));
    const int64_t memory = dist::peak_bytes(p.strategy, layout, p.sharing, activations);
    if (memory <= p.memory) continue;
    p.memory = memory;
    p.kept = dist::state_bytes(p.strategy, layout, p.sharing).total();
  }
  p.timeline =
      dist::pipeline_timeline(stages, p.sharing, dist::Schedule::k1F1B, cluster.seconds(p.sharing));
}

Prediction predict(const Arguments& a, const Demand& demand, const dist::Cluster& cluster,
                   const dist::StrategyOptions& strategy, int devices) {
  Prediction p{.strategy = strategy.name, .sharing = dist::sharing_of(strategy, devices)};
  const dist::Sharing& sharing = p.sharing;
  double optimizer = 0;
  if (sharing.stages > 1) {
    predict_pipeline(a, demand, cluster, p);
    optimizer =
        optimizer_seconds(cluster, static_cast<double>(demand.layout.parameters)) / sharing.stages;
  } else {
    const dist::ModelLayout& layout = sharing.tensor > 1 ? demand.cut : demand.layout;
    const int64_t images = a.batch * sharing.tensor;
    const int64_t activations =
        (sharing.tensor > 1 ? demand.cut_activations : demand.activations)
            .bytes(static_cast<double>(images), static_cast<double>(demand.layers));
    optimizer = optimizer_seconds(
        cluster, static_cast<double>(layout.parameters) / static_cast<double>(sharing.shard));
    p.timeline = dist::step_timeline(
        p.strategy, layout, sharing,
        dist::deal_out(pass_of(a, demand, cluster, static_cast<double>(images), sharing.tensor),
                       layout, optimizer),
        cluster.seconds(sharing), {}, images);
    p.kept = dist::state_bytes(p.strategy, layout, sharing).total();
    p.memory = dist::peak_bytes(p.strategy, layout, sharing, activations);
  }
  p.fits = static_cast<double>(p.memory) <= cluster.accelerator.memory;
  p.images_per_second = static_cast<double>(a.batch) * devices / p.timeline.end;
  // Against a device alone, on as many images each.
  const dist::StepWork::Pass alone = pass_of(a, demand, cluster, static_cast<double>(a.batch), 1);
  const bool computes_the_same = sharing.tensor == 1 && sharing.stages == 1;
  const double its_time =
      computes_the_same ? p.timeline.computation : alone.forward + alone.backward + optimizer;
  p.efficiency = std::min(1.0, its_time / p.timeline.end);
  const double peak =
      a.element_bytes() == 2 ? cluster.accelerator.bf16_flops : cluster.accelerator.fp32_flops;
  double flops = 0;
  for (const models::Matmul& f : demand.matmuls) flops += f.flops();
  p.utilization = 3 * flops * static_cast<double>(a.batch) / p.timeline.end / peak;
  return p;
}

/// Those that go together with the model and so many devices.
std::vector<dist::StrategyOptions> strategies_for(const Arguments& a, const Demand& demand,
                                                  const dist::Cluster& cluster, int devices) {
  std::vector<dist::StrategyOptions> all;
  for (const char* name : {"ddp", "zero1", "zero2", "fsdp"}) all.push_back({.name = name});
  // One group that all ranks share is fsdp.
  const int shard = a.shard_size > 0 ? a.shard_size : std::min(devices, cluster.devices_per_node);
  if (devices % shard == 0 && (a.shard_size > 0 || shard < devices)) {
    all.push_back({.name = "hsdp", .shard_size = shard});
  }
  if (demand.tensor > 1 && devices % demand.tensor == 0) {
    for (const char* name : {"tp", "fsdp+tp"}) {
      if (name == std::string("fsdp+tp") && devices == demand.tensor) continue;  // that is tp
      all.push_back({.name = name,
                     .tensor_parallel = demand.tensor,
                     .sequence_parallel = a.sequence_parallel});
    }
  }
  if (demand.stages > 1 && devices % demand.stages == 0) {
    all.push_back({.name = "pipeline",
                   .pipeline_stages = demand.stages,
                   .micro_batches = static_cast<int>(a.micro_batches)});
  }
  return all;
}

std::vector<Prediction> predict_all(const Arguments& a, const Demand& demand,
                                    const dist::Cluster& cluster, int devices) {
  std::vector<Prediction> all;
  for (const dist::StrategyOptions& strategy : strategies_for(a, demand, cluster, devices)) {
    all.push_back(predict(a, demand, cluster, strategy, devices));
  }
  std::ranges::stable_sort(all, [](const Prediction& x, const Prediction& y) {
    return std::pair(!x.fits, x.timeline.end) < std::pair(!y.fits, y.timeline.end);
  });
  return all;
}

/// "8 share a copy", "4 share a layer, 2 a copy"
std::string describe(const dist::Sharing& sharing) {
  std::vector<std::string> parts;
  const auto add = [&](int64_t n, const char* what) {
    if (n > 1) parts.push_back(fmt::format("{} {}", n, what));
  };
  add(sharing.tensor, "to a layer");
  add(sharing.stages, "stages");
  add(sharing.shard, "to a copy");
  add(sharing.replicas, "copies");
  return fmt::format("{}", fmt::join(parts, ", "));
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
          {"activation_bytes", demand.activation_bytes(a.batch)},
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
      "allows. Devices that share a layer or a pipeline take their images together.",
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
      .caption = "The time of one device alone over the step's."};
  report::LinePlot memory{
      .title = "Memory",
      .x = {.label = "devices", .unit = "", .scale = report::Scale::kLog2},
      .y = {.label = "peak on a device", .unit = "GB", .min = 0},
      .caption = "Parameters, gradients, AdamW's state, what is on its way, and activations."};
  const std::vector<int> devices = scales(cluster, a.devices);
  const double alone = predict(a, demand, cluster, {.name = "ddp"}, 1).images_per_second;
  report::Series ideal{.name = "perfect", .mark = report::Mark::kDashed};
  for (int n : devices) ideal.x.push_back(n), ideal.y.push_back(alone * n);
  int color = 0;
  for (const Prediction& strategy : best_first) {
    report::Series rate{
        .name = strategy.strategy, .mark = report::Mark::kLineAndPoints, .color = color++};
    report::Series share = rate, bytes = rate;
    for (int n : devices) {
      const auto all = strategies_for(a, demand, cluster, n);
      const auto mine = std::ranges::find(all, strategy.strategy, &dist::StrategyOptions::name);
      if (mine == all.end()) continue;
      const Prediction p = predict(a, demand, cluster, *mine, n);
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
    for (const auto& [setting, value] : {std::pair("tensor-parallel", a.tensor_parallel),
                                         std::pair("pipeline-stages", a.pipeline_stages)}) {
      WEFT_CHECK(value == 0 || a.devices % value == 0, "{} {} does not divide {} devices", setting,
                 value, a.devices);
    }
    const auto names = models::model_names();
    WEFT_CHECK(std::ranges::count(names, a.model) == 1, "unknown model \"{}\"; expected {}",
               a.model, fmt::join(names, ", "));
  });
  const Demand demand = demand_of(a, cluster);
  const std::vector<Prediction> predictions = predict_all(a, demand, cluster, a.devices);
  if (!a.html.empty()) write_report(a, demand, cluster, predictions);
  if (a.json) {
    for (const Prediction& p : predictions) {
      fmt::print("{}\n", json_of(a, cluster, p, demand).dump());
    }
    return 0;
  }
  fmt::print(
      "{}: {} parameters, {} images a device, {}\n{} x {} {}, {}\nPredicted, not measured. "
      "Activations of a device alone: {:.2f} GB.\n\n",
      a.model, demand.layout.parameters, a.batch, a.precision, a.nodes, cluster.devices_per_node,
      cluster.accelerator.title, cluster.network.title,
      1e-9 * static_cast<double>(demand.activation_bytes(a.batch)));
  train::Table table({{"strategy", 8, train::Table::Align::kLeft},
                      {"devices", 26, train::Table::Align::kLeft},
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
      "\nscaling: the time of one device alone over the step's. of peak: FLOPs of the products "
      "over "
      "the data sheet's.\nmemory: on the fullest device, of {:.0f} GB.\n",
      1e-9 * cluster.accelerator.memory);
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
  command
      .add_option(
          "--tensor-parallel", a->tensor_parallel,
          "Devices that share a layer, of tp and fsdp+tp; default: as many of a node, up to "
          "8, as the model can be cut for")
      ->check(CLI::Range(2, 1024));
  command.add_flag("--sequence-parallel", a->sequence_parallel,
                   "Tokens dealt out between cut layers, of tp and fsdp+tp");
  command
      .add_option("--pipeline-stages", a->pipeline_stages,
                  "Of pipeline; default: as many of a node, up to 8, as the model has parts")
      ->check(CLI::Range(2, 1024));
  command
      .add_option("--micro-batches", a->micro_batches,
                  "Parts of a pipeline's batch; default: two per stage")
      ->check(CLI::PositiveNumber);
  command.add_option("--html", a->html, "Write the scaling as a page of plots");
  command.add_flag("--json", a->json, "One JSON object a line, the best strategy first");
  command.callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace weft::cli
