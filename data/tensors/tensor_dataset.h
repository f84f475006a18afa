// Data sets of anything: samples are tuples of tensors.
//
//   data::TensorDatasetPtr pairs = data::tensor_dataset({left, right, is_same});   // rows
//
//   struct Tokens : data::TensorDataset {                       // or a class of one's own
//     int64_t size() const override { return (text.numel() - 1) / kWindow; }
//     Tensors sample(int64_t i) const override {
//       return {ops::narrow(text, 0, i * kWindow, kWindow),
//               ops::narrow(text, 0, i * kWindow + 1, kWindow)};
//     }
//     Tensor text;  // i64
//   };
//
//   data::TensorLoader loader(pairs, {.batch_size = 64, .shuffle = true, .seed = 1});
//   while (const auto batch = loader.next()) step((*batch)[0], (*batch)[1], (*batch)[2]);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "data/loader.h"

namespace weft::data {

class TensorDataset {
 public:
  virtual ~TensorDataset() = default;
  virtual int64_t size() const = 0;
  /// The tensors of one sample: as many for each, of the same shapes and dtypes.
  virtual Tensors sample(int64_t index) const = 0;
  /// Several samples, a first dimension counting them. Throws Error naming samples that differ.
  virtual Tensors batch(std::span<const int64_t> indices) const;
};

using TensorDatasetPtr = std::shared_ptr<const TensorDataset>;

/// Sample i is row i of each tensor. Throws Error without tensors, and unless all have as many
/// rows, one at least.
TensorDatasetPtr tensor_dataset(Tensors tensors);

struct TensorLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  uint64_t seed = 0;
};

/// Batches of a set, made when they are asked for. What a batch holds depends on (set, options,
/// epoch, index) alone: an epoch's order is epoch_order(). Fabric::share() shares them out.
class TensorLoader final : public PositionedLoader {
 public:
  /// Throws Error for options out of range, an empty set, and a batch larger than the set when the
  /// last batch is dropped.
  TensorLoader(TensorDatasetPtr dataset, TensorLoaderOptions options);

  int64_t batches() const override;
  std::optional<Tensors> next();

 private:
  void on_seek() override { order_.clear(); }

  const TensorDatasetPtr dataset_;
  const TensorLoaderOptions options_;
  std::vector<int64_t> order_;  // of the epoch, once it has begun; else empty
};

}  // namespace weft::data
