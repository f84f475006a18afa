// How good a model is on a data set.
#pragma once

#include <cstdint>
#include <functional>

#include "data/loader.h"
#include "train/trained_model.h"

namespace weft::train {

struct Score {
  double loss = 0;      // mean cross-entropy
  double accuracy = 0;  // a fraction
  int64_t examples = 0;
};

/// The model on every batch of the loader's next epoch (the first `limit` of them when not 0), in
/// evaluation mode, in config.precision and config.matmul_numerics. After each batch it calls
/// progress(batches done, score so far) and stops where that returns false. `forward`, when given,
/// is called in the place of the model.
Score evaluate(TrainedModel& model, data::Loader& loader, int64_t limit = 0,
               const std::function<bool(int64_t, const Score&)>& progress = {},
               const std::function<Tensor(const Tensor&)>& forward = {});

/// Rows of `logits` [N, C] whose largest entry stands at their label.
int64_t count_correct(const Tensor& logits, const Tensor& labels);
/// Rows whose class i64 [N] is their label.
int64_t count_equal(const Tensor& predicted, const Tensor& labels);

}  // namespace weft::train
