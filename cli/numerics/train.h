// What `weft numerics train` measures: one training in several precisions.
//
// All runs start from the same weights and see the same images in the same order; a run ends early
// when its loss is no longer finite. Beside the runs: at the first run's last weights, how many
// elements of each product's gradient fp32 and fp16 hold as zero, with and without a loss scale.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/numerics/numerics.h"
#include "core/dtype.h"
#include "train/trained_model.h"

namespace weft::cli {

/// fp16 without a loss scale: what GradScaler is for.
inline constexpr const char* kUnscaled = "fp16-unscaled";

struct TrainArguments : Output {
  std::vector<std::string> precisions = {"fp32", "tf32", "bf16", "fp16", kUnscaled};
  std::string model = "cct", data = "builtin", matmul_numerics = "ieee";
  int64_t steps = 100, batch_size = 32;
  double lr = 1e-3, loss_scale = 65536, loss_factor = 1;
  uint64_t seed = 0;
};

struct TrainStep {
  double loss = 0, accuracy = 0, scale = 1;
  bool skipped = false;
};

struct TrainRun {
  std::string name;
  std::vector<TrainStep> steps;
  std::vector<int64_t> divergence_steps;
  std::vector<double> divergence;  // ||w - w_first|| / ||w_first|| against the first run
  train::Score validation;
  bool diverged = false;  // its loss became infinite or NaN

  int64_t skipped() const {
    return std::ranges::count_if(steps, [](const TrainStep& s) { return s.skipped; });
  }
};

/// What a layer's gradient held, in the dtype in which it flowed.
struct GradientCount {
  std::string layer;
  DType dtype = DType::f32;
  int64_t elements = 0, zero = 0, subnormal = 0, not_finite = 0;

  double share(int64_t count) const {
    return elements > 0 ? static_cast<double>(count) / static_cast<double>(elements) : 0;
  }
};

/// The first run's gradients in f32, and in fp16 without and with a scale, at its last weights.
struct GradientReport {
  double scale = 1;
  std::vector<GradientCount> f32, f16, scaled;
};

struct TrainResult {
  std::vector<TrainRun> runs;
  GradientReport gradients;
};

/// As tables on standard output, or with --json as an object per step, point of divergence, layer
/// and run; and as a page where --html says so.
void report_training(const TrainResult& result, const TrainArguments& a);

}  // namespace weft::cli
