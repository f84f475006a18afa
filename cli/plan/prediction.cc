#include "cli/plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/ranked_step.h"
#include "dist/comm/in_process.h"
#include "models/registry.h"

namespace weft::cli {
namespace {

/// The peak of activations on a rank in a step on `batch` images for each of those who share one,
/// as the allocator counts them.
double count_activations(const PlanOptions& a, const dist::StrategyOptions& strategy, int ranks,
                         int64_t batch, std::optional<int64_t> layers) {
  std::vector<double> bytes(ranks);
  dist::run_ranks(ranks, [&](dist::Communicator& world) {
    const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
    RankedStepOptions options{.model = a.model, .strategy = strategy, .batch = batch};
    options.options.layers = layers;
    options.precision = a.precision;
    RankedStep step(options, handle);
    step.run();
    bytes[world.rank()] = static_cast<double>(step.account().bytes(MemoryKind::kActivations).peak);
  });
  return *std::ranges::max_element(bytes);
}

Activations activations_of(const PlanOptions& a, const dist::StrategyOptions& strategy, int ranks,
                           bool has_layers) {
  const auto count = [&](int64_t batch, int64_t layers) {
    return count_activations(a, strategy, ranks, batch,
                             has_layers ? std::optional(layers) : std::nullopt);
  };
  // A batch is that of one device; those who share a layer take theirs together.
  const double few = count(1, 2), more = count(2, 2);
  const double few_deeper = has_layers ? count(1, 3) : few,
               more_deeper = has_layers ? count(2, 3) : more;
  Activations result;
  result.layers_per_image = ((more_deeper - more) - (few_deeper - few)) / ranks;
  result.layers_constant = few_deeper - few - ranks * result.layers_per_image;
  result.per_image = (more - few) / ranks - 2 * result.layers_per_image;
  result.constant =
      few - 2 * result.layers_constant - ranks * (result.per_image + 2 * result.layers_per_image);
  return result;
}

/// The layouts of those who share a model so; none where that cannot be.
std::vector<dist::ModelLayout> layouts_if_possible(const PlanOptions& a,
                                                   const dist::StrategyOptions& strategy,
                                                   int ranks) {
  try {
    return layouts_of_model({.model = a.model, .strategy = strategy, .batch = 2}, ranks);
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
    demand.cut_activations =
        activations_of(a, tensor_strategy(a), demand.tensor, demand.layers > 0);
  }
  demand.stages = choose(a.settings.pipeline_stages, "pipeline-stages", {.name = "pipeline"},
                         demand.stage_layouts);
  for (dist::ModelLayout& stage : demand.stage_layouts) stage.activation_bytes = a.element_bytes();
}

}  // namespace

Demand demand_of(const PlanOptions& a, const dist::Cluster& cluster) {
  Demand demand{.options = a, .cluster = cluster};
  demand.layout = layout_of_model({.model = a.model});
  if (demand.layout.tokens > 0) demand.layers = static_cast<int64_t>(demand.layout.units.size());
  demand.matmuls = models::make_model(a.model)->forward_matmuls(1);
  demand.activations = activations_of(a, {}, 1, demand.layers > 0);
  choose_cuts(a, cluster, demand);
  return demand;
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

/// Besides the products every activation is written once and read once in a forward pass.
dist::StepWork::Pass pass_of(const Demand& demand, double images, int tensor) {
  const Activations& activations = tensor > 1 ? demand.cut_activations : demand.activations;
  return dist::roofline(
      demand.cluster.accelerator, products_of(demand, images, tensor),
      2.0 * static_cast<double>(activations.bytes(images, static_cast<double>(demand.layers))),
      demand.options.element_bytes(), {.products = demand.options.efficiency});
}

/// What a rank has and computes, and the memory that it needs.
struct PlannedRank {
  dist::RankWork rank;
  int64_t activations = 0;  // bytes
};

/// The stages of a pipeline whose devices take `batch` images each.
std::vector<PlannedRank> stages_of(const Demand& demand, const dist::Sharing& sharing) {
  const double images = static_cast<double>(demand.options.batch * sharing.stages) /
                        static_cast<double>(sharing.micro_batches);
  const dist::StepWork work = dist::deal_out(pass_of(demand, images, 1), demand.layout, 0);
  std::vector<PlannedRank> stages;
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
    // One forward, one backward: the first stages have the most under way.
    Activations activations = demand.activations;
    if (s > 0) activations.per_image = 0;
    const auto in_flight =
        static_cast<double>(std::min<int64_t>(sharing.stages - s, sharing.micro_batches));
    stages.push_back(
        {{layout, mine},
         activations.bytes(in_flight * images, static_cast<double>(layout.units.size()))});
  }
  return stages;
}

/// The rank that stands for all, of `images` of those who share a layer.
PlannedRank rank_of(const Demand& demand, const dist::Sharing& sharing, int64_t images) {
  const bool is_cut = sharing.tensor > 1;
  const dist::ModelLayout& layout = is_cut ? demand.cut : demand.layout;
  const double optimizer = optimizer_seconds(
      demand.cluster, layout,
      static_cast<double>(layout.parameters) / static_cast<double>(sharing.shard));
  const auto count = static_cast<double>(images);
  return {{layout, dist::deal_out(pass_of(demand, count, sharing.tensor), layout, optimizer)},
          (is_cut ? demand.cut_activations : demand.activations)
              .bytes(count, static_cast<double>(demand.layers))};
}

}  // namespace

Prediction predict(const Demand& demand, const dist::StrategyOptions& asked, int devices) {
  const dist::StrategyKind& kind = dist::find_strategy(asked.name);
  dist::StrategyOptions strategy = asked;
  if (demand.options.precision == "bf16") strategy.product_dtype = "bf16";
  Prediction p{.strategy = kind.name, .sharing = dist::sharing_of(strategy, devices)};
  const dist::Sharing& sharing = p.sharing;
  const int64_t images = demand.options.batch * sharing.tensor * sharing.stages;
  const std::vector<PlannedRank> planned = sharing.stages > 1
                                               ? stages_of(demand, sharing)
                                               : std::vector{rank_of(demand, sharing, images)};
  std::vector<dist::RankWork> ranks;
  for (const auto& [rank, activations] : planned) {
    ranks.push_back(rank);
    const int64_t memory = kind.peak_bytes(rank.layout, sharing, activations);
    if (memory <= p.memory) continue;
    p.memory = memory;
    p.kept = kind.state_bytes(rank.layout, sharing).total();
  }
  p.timeline = kind.timeline(ranks, sharing, demand.cluster.seconds(sharing), {.images = images});
  p.fits = static_cast<double>(p.memory) <= demand.cluster.accelerator.memory;
  p.images_per_second = static_cast<double>(demand.options.batch) * devices / p.timeline.end;
  // Against a device alone, on as many images each.
  const dist::StepWork::Pass alone = pass_of(demand, static_cast<double>(demand.options.batch), 1);
  const bool computes_the_same = sharing.tensor == 1 && sharing.stages == 1;
  const double optimizer = sharing.stages > 1
                               ? optimizer_seconds(demand.cluster, demand.layout,
                                                   static_cast<double>(demand.layout.parameters)) /
                                     sharing.stages
                               : ranks[0].work.optimizer;
  const double its_time =
      computes_the_same ? p.timeline.computation : alone.forward + alone.backward + optimizer;
  p.efficiency = std::min(1.0, its_time / p.timeline.end);
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
