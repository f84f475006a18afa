// Where a run stands: what a checkpoint records besides the model and the optimizer.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "train/evaluation.h"

namespace weft::train {

/// Sums over the batches of an epoch that are done, and their means.
struct EpochStatistics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t images = 0;

  double loss() const { return images ? loss_sum / static_cast<double>(images) : NAN; }
  double accuracy() const {
    return images ? static_cast<double>(correct) / static_cast<double>(images) : NAN;
  }
};

/// What an epoch came to; NaN before the first.
struct EpochResult {
  double loss = NAN;
  double train_accuracy = NAN;
  Score validation = {NAN, NAN, 0};
};

struct RunState {
  int64_t step = 0;   // steps done
  int64_t epoch = 0;  // epochs done
  int64_t batch = 0;  // of the epoch: batches done
  EpochStatistics statistics;
  EpochResult last_epoch;
};

/// {"progress": ..., "last_epoch": ...}
nlohmann::json to_json(const RunState& state);
/// Of an object that holds both among others. Throws nlohmann's exceptions.
RunState run_state_from_json(const nlohmann::json& json);

}  // namespace weft::train
