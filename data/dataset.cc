#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace weft::data {
namespace {

class Subset : public Dataset {
 public:
  Subset(DatasetPtr base, std::vector<int64_t> indices)
      : base_(std::move(base)), indices_(std::move(indices)) {
    for (const int64_t index : indices_) {
      WEFT_CHECK(index >= 0 && index < base_->size(), "subset: index {} of {} examples", index,
                 base_->size());
    }
  }
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  const std::vector<std::string>& class_names() const override { return base_->class_names(); }
  ImageFormat format() const override { return base_->format(); }
  int64_t label(int64_t index) const override { return base_->label(indices_.at(index)); }
  Example example(int64_t index) const override { return base_->example(indices_.at(index)); }

 private:
  DatasetPtr base_;
  std::vector<int64_t> indices_;
};

class Relabelled : public Dataset {
 public:
  Relabelled(DatasetPtr base, const std::vector<std::string>& class_names)
      : base_(std::move(base)), class_names_(class_names) {
    for (const std::string& name : base_->class_names()) {
      const auto found = std::find(class_names_.begin(), class_names_.end(), name);
      WEFT_CHECK(found != class_names_.end(), "class '{}' of the data is not one of {}", name,
                 fmt::format("'{}'", fmt::join(class_names_, "', '")));
      new_label_.push_back(found - class_names_.begin());
    }
  }
  int64_t size() const override { return base_->size(); }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  ImageFormat format() const override { return base_->format(); }
  int64_t label(int64_t index) const override { return new_label_[base_->label(index)]; }
  Example example(int64_t index) const override {
    Example example = base_->example(index);
    example.label = new_label_[example.label];
    return example;
  }

 private:
  DatasetPtr base_;
  std::vector<std::string> class_names_;
  std::vector<int64_t> new_label_;
};

}  // namespace

DatasetPtr subset(DatasetPtr base, std::vector<int64_t> indices) {
  return std::make_shared<Subset>(std::move(base), std::move(indices));
}

DatasetPtr subset(DatasetPtr base, int64_t begin, int64_t end) {
  WEFT_CHECK(begin <= end, "subset: begin {} is after end {}", begin, end);
  std::vector<int64_t> indices(end - begin);
  std::iota(indices.begin(), indices.end(), begin);
  return subset(std::move(base), std::move(indices));
}

DatasetPtr relabel(DatasetPtr base, const std::vector<std::string>& class_names) {
  if (base->class_names() == class_names) return base;
  return std::make_shared<Relabelled>(std::move(base), class_names);
}

}  // namespace weft::data
