// What weft plan predicts: a step's time on machines that are not here, and what it would need.
//
// Time: a roofline of the model's products and of the bytes that its other operations move, laid
// out by each strategy's schedule beside collectives in an alpha-beta model of the cluster
// (dist/plan/cluster.h). Memory: the strategies' formulas, and activations as counted here in steps
// of two layers and of three on few images. `weft bench plan` holds both against runs.
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
              precision = "bf16";
  int devices = 0, nodes = 1;
  int64_t batch = 128;
  dist::StrategyOptions settings = {};  // of one strategy each; 0: the plan's choice
  double efficiency = dist::Efficiency{}.products;

  int element_bytes() const { return precision == "bf16" ? 2 : 4; }
};

/// Bytes of activations: constant + images per_image, and in each layer of both as much again. What
/// a layer keeps whatever the batch are its weights' copies in the precision's dtype.
struct Activations {
  double constant = 0, per_image = 0;
  double layers_constant = 0, layers_per_image = 0;

  int64_t bytes(double images, double layers) const {
    return static_cast<int64_t>(constant + images * per_image +
                                layers * (layers_constant + images * layers_per_image));
  }
};

/// What is planned, and the model's demands.
struct Demand {
  PlanOptions options;
  dist::Cluster cluster;
  int64_t layers = 0;  // of an encoder; 0: the model has none
  dist::ModelLayout layout;
  models::Matmuls matmuls;  // of one image
  Activations activations;
  // Of a rank with its shard of every layer, and of a pipeline's stages.
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

/// Counts activations on the way. Throws Error for --tensor-parallel or --pipeline-stages that the
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
