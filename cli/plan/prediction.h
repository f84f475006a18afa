// What weft plan predicts: a step's time on machines that are not here, and what it would need.
//
// Time: a roofline of the model's products and of the bytes that its other kernels move
// (cli/step/step_bytes.h), laid out by each strategy's schedule beside collectives in an alpha-beta
// model of the cluster (dist/plan/cluster.h). Memory: that of a rehearsed step
// (cli/step/rehearsed_step.h). `weft bench plan` holds both against runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/plan/cluster.h"
#include "dist/strategy/strategy_kind.h"
#include "models/classifier.h"

namespace weft::cli {

struct PlanOptions {
  std::string model = "vit_b_16", accelerator = "h100", network = "infiniband-ndr",
              precision = "bf16", optimizer = "adamw";
  int devices = 0, nodes = 1;
  int64_t batch = 128;
  dist::StrategyOptions settings = {};  // of one strategy each; 0: the plan's choice
  double efficiency = dist::Efficiency{}.products;

  int element_bytes() const { return precision == "bf16" ? 2 : 4; }
};

/// What is planned, and the model's demands.
struct Demand {
  PlanOptions options;
  dist::Cluster cluster;
  dist::ModelLayout layout;
  models::Matmuls matmuls;       // of one image
  int64_t activation_bytes = 0;  // of a device alone, on its batch
  // Moved in forward and backward by kernels that are no products, on one device.
  double moved_constant = 0, moved_per_image = 0;
  // Of a rank with its shard of every layer, and of a pipeline's stages.
  int tensor = 1, stages = 1;  // 1: the strategy does not fit the model and the cluster
  dist::ModelLayout cut;
  int64_t cut_activation_bytes = 0;  // on as many batches as share a layer
  std::vector<dist::ModelLayout> stage_layouts;

  /// Bytes that activations take when so many images are under way together.
  double activations_of(double images, bool is_cut) const;
  /// Bytes that kernels other than products move, forward and backward.
  double moved_by(double images) const { return moved_constant + images * moved_per_image; }
};

struct Prediction {
  std::string strategy;
  dist::Sharing sharing;
  dist::Timeline timeline;
  int64_t memory = 0, kept = 0;  // bytes; with activations and without
  bool fits = true;
  double images_per_second = 0, efficiency = 0, utilization = 0;
};

/// Throws Error for --tensor-parallel or --pipeline-stages that the
/// model cannot be split into.
Demand demand_of(const PlanOptions& options, const dist::Cluster& cluster);

/// The strategies that go together with the model and so many devices.
std::vector<dist::StrategyOptions> strategies_for(const Demand& demand, int devices);
Prediction predict(const Demand& demand, const dist::StrategyOptions& asked, int devices);
/// Of all these strategies: those that fit first, the fastest first.
std::vector<Prediction> predict_all(const Demand& demand);

/// "4 to a layer, 2 copies"
std::string describe(const dist::Sharing& sharing);

/// A page of scaling, efficiency and memory over the number of devices. Throws Error when it cannot
/// be written.
void write_plan_report(const std::string& path, const Demand& demand,
                       const std::vector<Prediction>& best_first);

}  // namespace weft::cli
