// The oracle of every strategy: K steps on N ranks are K steps on one rank with the whole batch.
//
// A small model that has what makes sharding go wrong: odd sizes, a weight used in two places,
// layer norms, a parameter of one element.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/philox.h"
#include "dist/communicator.h"
#include "nn/loss.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/sgd.h"

namespace weft::dist {

/// x [B, 7] -> [B, 5]; `tied` is used by two layers.
class OracleModel : public nn::Module {
 public:
  OracleModel()
      : fc1(add<nn::Linear>("fc1", 7, 11)),
        norm(add<nn::LayerNorm>("norm", 11)),
        tied(add<nn::Linear>("tied", 11, 11)),
        scale(parameter("scale", Tensor::scalar(1.5))),
        fc2(add<nn::Linear>("fc2", 11, 5)) {}
  Tensor forward(const Tensor& x) override {
    const Tensor h = norm(ops::gelu(fc1(x)));
    return fc2(tied(ops::gelu(tied(h) * scale)) + h);
  }
  nn::Linear& fc1;
  nn::LayerNorm& norm;
  nn::Linear& tied;
  Tensor scale;
  nn::Linear& fc2;
};

/// The same weights wherever it is called.
inline std::unique_ptr<OracleModel> make_oracle_model(DType dtype, uint64_t seed = 3) {
  manual_seed(seed);
  auto model = std::make_unique<OracleModel>();
  model->to(dtype);
  return model;
}

struct OracleBatch {
  Tensor x, labels;
};

/// The whole batch of a step.
inline OracleBatch oracle_batch(int step, int64_t rows, DType dtype) {
  Philox random(99, static_cast<uint64_t>(step));
  std::vector<double> x(rows * 7);
  for (double& value : x) value = random.normal();
  std::vector<int64_t> labels(rows);
  for (int64_t& label : labels) label = static_cast<int64_t>(random.below(5));
  const NoGrad guard;
  return {ops::cast(Tensor::from(x, {rows, 7}), dtype), Tensor::from(labels, {rows})};
}

/// Rows [begin, begin + count).
inline OracleBatch rows_of(const OracleBatch& batch, int64_t begin, int64_t count) {
  return {ops::contiguous(ops::narrow(batch.x, 0, begin, count)),
          ops::contiguous(ops::narrow(batch.labels, 0, begin, count))};
}

/// A rank's rows of a batch, cut as evenly as it goes, and their share of it.
struct OracleShare {
  OracleBatch batch;
  double weight = 0;
};
inline OracleShare share_of(const OracleBatch& batch, int ranks, int rank) {
  const int64_t rows = batch.x.size(0);
  const std::vector<int64_t> counts = split_evenly(rows, ranks);
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {rows_of(batch, begin, counts[rank]),
          static_cast<double>(counts[rank]) / static_cast<double>(rows)};
}

/// max |a - b| over all elements, relative to max |b|. Throws Error for different names or shapes.
inline double difference(const NamedTensors& a, const NamedTensors& b) {
  WEFT_CHECK(a.size() == b.size(), "oracle: {} tensors against {}", a.size(), b.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    WEFT_CHECK(a[i].first == b[i].first && a[i].second.shape() == b[i].second.shape(),
               "oracle: {} {} against {} {}", a[i].first, a[i].second, b[i].first, b[i].second);
    const std::vector<double> x = a[i].second.to_vector(), y = b[i].second.to_vector();
    for (size_t j = 0; j < x.size(); ++j) {
      worst = std::max(worst, std::abs(x[j] - y[j]));
      largest = std::max(largest, std::abs(y[j]));
      if (std::isnan(x[j]) != std::isnan(y[j])) worst = INFINITY;
    }
  }
  return worst == 0 ? 0 : worst / largest;
}

inline NamedTensors cloned(const NamedTensors& tensors) {
  const NoGrad guard;
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, ops::clone(tensor));
  return result;
}

}  // namespace weft::dist
