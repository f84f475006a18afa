#include "data/tensors/tensor_dataset.h"

#include <algorithm>
#include <utility>

#include "autograd/ops.h"
#include "core/error.h"

namespace weft::data {
namespace {

class Rows : public TensorDataset {
 public:
  explicit Rows(Tensors tensors) : tensors_(std::move(tensors)) {
    WEFT_CHECK(!tensors_.empty(), "tensor_dataset: expected tensors, got none");
    for (const Tensor& x : tensors_) {
      WEFT_CHECK(x.defined() && x.dim() > 0 && x.size(0) > 0,
                 "tensor_dataset: expected a row for each sample, got {}", x);
      WEFT_CHECK(x.size(0) == size(), "tensor_dataset: tensors of {} and {} rows", size(),
                 x.size(0));
    }
  }

  int64_t size() const override { return tensors_[0].size(0); }
  Tensors sample(int64_t index) const override {
    const NoGrad guard;
    Tensors parts;
    for (const Tensor& x : tensors_) parts.push_back(ops::select(x, 0, index));
    return parts;
  }
  Tensors batch(std::span<const int64_t> indices) const override {
    const NoGrad guard;
    const Tensor rows = Tensor::from(indices, {static_cast<int64_t>(indices.size())});
    Tensors parts;
    for (const Tensor& x : tensors_) {
      parts.push_back(ops::index_select(x, 0, ops::to(rows, x.device())));
    }
    return parts;
  }

 private:
  const Tensors tensors_;
};

}  // namespace

Tensors TensorDataset::batch(std::span<const int64_t> indices) const {
  const NoGrad guard;
  std::vector<Tensors> rows;  // by part, then by sample
  for (const int64_t index : indices) {
    const Tensors parts = sample(index);
    rows.resize(rows.empty() ? parts.size() : rows.size());
    WEFT_CHECK(parts.size() == rows.size(), "data set: sample {} has {} tensors, sample {} has {}",
               index, parts.size(), indices[0], rows.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool is_alike = rows[i].empty() || (rows[i][0].shape() == parts[i].shape() &&
                                                rows[i][0].dtype() == parts[i].dtype());
      WEFT_CHECK(is_alike, "data set: tensor {} of sample {} is {}, of sample {} it is {}", i,
                 index, parts[i], indices[0], rows[i][0]);
      rows[i].push_back(parts[i]);
    }
  }
  Tensors stacked;
  for (const Tensors& part : rows) stacked.push_back(ops::stack(part, 0));
  return stacked;
}

TensorDatasetPtr tensor_dataset(Tensors tensors) {
  return std::make_shared<Rows>(std::move(tensors));
}

TensorLoader::TensorLoader(TensorDatasetPtr dataset, TensorLoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  WEFT_CHECK(options_.batch_size > 0, "loader: batch size must be positive, got {}",
             options_.batch_size);
  WEFT_CHECK(dataset_->size() > 0, "loader: the data set is empty");
  WEFT_CHECK(!options_.drop_last || options_.batch_size <= dataset_->size(),
             "loader: batch size {} is larger than the data set of {} samples", options_.batch_size,
             dataset_->size());
}

int64_t TensorLoader::batches() const {
  const int64_t full = dataset_->size() / options_.batch_size;
  const bool has_rest = dataset_->size() % options_.batch_size != 0 && !options_.drop_last;
  return full + has_rest;
}

std::optional<Tensors> TensorLoader::next() {
  if (position().batch == batches()) {
    begin_next_epoch();
    return std::nullopt;
  }
  if (order_.empty()) {
    order_ = epoch_order(dataset_->size(), options_.shuffle, options_.seed, position().epoch);
  }
  const int64_t begin = position().batch * options_.batch_size;
  const int64_t count = std::min(options_.batch_size, dataset_->size() - begin);
  Tensors batch = dataset_->batch(std::span(order_).subspan(begin, count));
  advance();
  return batch;
}

}  // namespace weft::data
