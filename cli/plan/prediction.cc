#include "cli/plan/prediction.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cli/step/rehearsed_step.h"
#include "cli/step/step_bytes.h"
#include "models/registry.h"

namespace weft::cli {
namespace {

RankedStepOptions step_of(const PlanOptions& a, const dist::StrategyOptions& strategy) {
  return {.model = a.model,
          .strategy = strategy,
          .batch = a.batch,
          .optimizer = a.optimizer,
          .precision = a.precision};
}

int64_t activation_bytes(const PlanOptions& a, const dist::StrategyOptions& strategy, int devices) {
  return fullest(rehearse(step_of(a, strategy), devices))[MemoryKind::kActivations];
}

/// A line through one image and a device's batch.
void count_moved(const PlanOptions& a, Demand& demand) {
  const auto count = [&](int64_t batch) {
    const StepOptions step{.model = a.model, .precision = a.precision, .batch = batch};
    return static_cast<double>(count_bytes(step).beside_products);
  };
  const int64_t many = std::max<int64_t>(a.batch, 2);
  const double one = count(1);
  demand.moved_per_image = (count(many) - one) / static_cast<double>(many - 1);
  demand.moved_constant = one - demand.moved_per_image;
}

/// The layouts of those who share a model so; none where that cannot be.
std::vector<dist::ModelLayout> layouts_if_possible(const PlanOptions& a,
                                                   const dist::StrategyOptions& strategy,
                                                   int ranks) {
  try {
    return layouts_of_model(step_of(a, strategy), ranks);
  } catch (const Error&) {
    return {};
  }
}

dist::StrategyOptions tensor_strategy(const PlanOptions& a) {
  return {.name = "tp", .sequence_parallel = a.settings.sequence_parallel};
}

/// As many as share a node, at most eight, that the model can be cut for.
void choose_cuts(const PlanOptions& a, const dist::Cluster& cluster, Demand& demand) {
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
  demand.tensor = choose(a.settings.tensor_parallel, "tensor-parallel", tensor_strategy(a), cut);
  if (demand.tensor > 1) {
    demand.cut = cut[0];
    demand.cut.activation_bytes = a.element_bytes();
    demand.cut_activation_bytes = activation_bytes(a, tensor_strategy(a), demand.tensor);
  }
  demand.stages = choose(a.settings.pipeline_stages, "pipeline-stages", {.name = "pipeline"},
                         demand.stage_layouts);
  for (dist::ModelLayout& stage : demand.stage_layouts) stage.activation_bytes = a.element_bytes();
}

}  // namespace

Demand demand_of(const PlanOptions& a, const dist::Cluster& cluster) {
  Demand demand{.options = a, .cluster = cluster};
  demand.layout = layout_of_model(step_of(a, {}));
  demand.matmuls = models::make_model(a.model)->forward_matmuls(1);
  demand.activation_bytes = activation_bytes(a, {}, 1);
  count_moved(a, demand);
  choose_cuts(a, cluster, demand);
  return demand;
}

double Demand::activations_of(double images, bool is_cut) const {
  const auto batch = static_cast<double>(options.batch);
  return is_cut ? static_cast<double>(cut_activation_bytes) * images / (batch * tensor)
                : static_cast<double>(activation_bytes) * images / batch;
}

namespace {

/// A forward pass's products on so many images; of layers that are split, a rank's shard of them.
std::vector<dist::Product> products_of(const Demand& demand, double images, int tensor) {
  std::vector<dist::Product> products;
  for (const models::Matmul& f : demand.matmuls) {
    dist::Product p{static_cast<double>(f.m), static_cast<double>(f.n), static_cast<double>(f.k),
                    static_cast<double>(f.batch * f.count)};
    // Attention's are a batch of one an image and head, the others have images as rows.
    (f.role == models::Role::kHeads ? p.count : p.m) *= images;
    if (f.role == models::Role::kHeads) p.count /= tensor;
    if (f.role == models::Role::kColumns) p.n /= tensor;
    if (f.role == models::Role::kRows) p.k /= tensor;
    products.push_back(p);
  }
  return products;
}

/// An optimizer reads parameter, gradient and its state, and writes all but the gradient.
double optimizer_seconds(const dist::Cluster& cluster, const dist::ModelLayout& layout,
                         double parameters) {
  const auto bytes = static_cast<double>(4 * (3 + 2 * layout.state_tensors));
  return bytes * parameters / (dist::Efficiency{}.memory * cluster.accelerator.memory_bandwidth);
}

dist::StepWork::Pass pass_of(const Demand& demand, double images, int tensor) {
  double moved = demand.moved_by(images);
  // Of layers that are split a rank moves as much less as it keeps less.
  if (tensor > 1)
    moved *= demand.activations_of(images, true) / demand.activations_of(images, false);
  // The roofline has twice as much in backward as in forward.
  return dist::roofline(demand.cluster.accelerator, products_of(demand, images, tensor), moved / 3,
                        demand.options.element_bytes(), {.products = demand.options.efficiency});
}

/// The stages of a pipeline whose devices take `batch` images each.
std::vector<dist::RankWork> stages_of(const Demand& demand, const dist::Sharing& sharing) {
  const double images = static_cast<double>(demand.options.batch * sharing.stages) /
                        static_cast<double>(sharing.micro_batches);
  const dist::StepWork work = dist::deal_out(pass_of(demand, images, 1), demand.layout, 0);
  std::vector<dist::RankWork> stages;
  auto unit = work.units.begin();
  for (int s = 0; s < sharing.stages; ++s) {
    const dist::ModelLayout& layout = demand.stage_layouts[s];
    const auto end = unit + static_cast<std::ptrdiff_t>(layout.units.size());
    WEFT_ASSERT(end <= work.units.end());
    dist::StepWork mine{.units = {unit, end},
                        .optimizer = optimizer_seconds(demand.cluster, layout,
                                                       static_cast<double>(layout.parameters))};
    if (s == 0) mine.before = work.before;
    if (s + 1 == sharing.stages) mine.behind = work.behind;
    unit = end;
    stages.push_back({layout, mine});
  }
  return stages;
}

/// The rank that stands for all, of `images` of those who share a layer.
dist::RankWork rank_of(const Demand& demand, const dist::Sharing& sharing, int64_t images) {
  const dist::ModelLayout& layout = sharing.tensor > 1 ? demand.cut : demand.layout;
  const double optimizer = optimizer_seconds(
      demand.cluster, layout,
      static_cast<double>(layout.parameters) / static_cast<double>(sharing.shard));
  const dist::StepWork::Pass pass = pass_of(demand, static_cast<double>(images), sharing.tensor);
  return {layout, dist::deal_out(pass, layout, optimizer)};
}

}  // namespace

Prediction predict(const Demand& demand, const dist::StrategyOptions& asked, int devices) {
  const dist::StrategyKind& kind = dist::find_strategy(asked.name);
  const RankedStepOptions step = step_of(demand.options, asked);
  Prediction p{.strategy = kind.name, .sharing = dist::sharing_of(filled(step, devices), devices)};
  const dist::Sharing& sharing = p.sharing;
  const int64_t images = images_of(step, sharing);
  const std::vector<dist::RankWork> ranks = sharing.stages > 1
                                                ? stages_of(demand, sharing)
                                                : std::vector{rank_of(demand, sharing, images)};
  const RankCost cost = fullest(rehearse(step, devices));
  p.memory = cost.peak;
  p.kept = cost.state;
  p.timeline = kind.timeline(ranks, sharing, demand.cluster.seconds(sharing), {.images = images});
  p.fits = static_cast<double>(p.memory) <= demand.cluster.accelerator.memory;
  p.images_per_second = static_cast<double>(demand.options.batch) * devices / p.timeline.end;
  // Against a device alone, on as many images each. It updates all parameters.
  const dist::StepWork::Pass alone = pass_of(demand, static_cast<double>(demand.options.batch), 1);
  const double update = optimizer_seconds(demand.cluster, demand.layout,
                                          static_cast<double>(demand.layout.parameters));
  p.efficiency = (alone.forward + alone.backward + update) / p.timeline.end;
  const double peak = demand.options.element_bytes() == 2 ? demand.cluster.accelerator.bf16_flops
                                                          : demand.cluster.accelerator.fp32_flops;
  double flops = 0;
  for (const models::Matmul& f : demand.matmuls) flops += f.flops();
  p.utilization = 3 * flops * static_cast<double>(demand.options.batch) / p.timeline.end / peak;
  return p;
}

std::vector<dist::StrategyOptions> strategies_for(const Demand& demand, int devices) {
  const dist::PlanChoice choice{.devices = devices,
                                .devices_per_node = demand.cluster.devices_per_node,
                                .tensor = demand.tensor,
                                .stages = demand.stages,
                                .asked = demand.options.settings};
  std::vector<dist::StrategyOptions> all;
  for (const auto& kind : dist::strategies()) {
    if (const auto options = kind->planned(choice)) all.push_back(*options);
  }
  return all;
}

std::vector<Prediction> predict_all(const Demand& demand) {
  const int devices = demand.options.devices;
  std::vector<Prediction> all;
  for (const dist::StrategyOptions& strategy : strategies_for(demand, devices)) {
    all.push_back(predict(demand, strategy, devices));
  }
  std::ranges::stable_sort(all, [](const Prediction& x, const Prediction& y) {
    return std::pair(!x.fits, x.timeline.end) < std::pair(!y.fits, y.timeline.end);
  });
  return all;
}

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

}  // namespace weft::cli
