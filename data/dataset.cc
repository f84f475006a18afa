#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"

namespace weft::data {
namespace {

class MemoryDataset : public Dataset {
 public:
  MemoryDataset(ImageFormat format, std::vector<std::string> class_names,
                std::vector<uint8_t> pixels, std::vector<uint8_t> labels)
      : format_(format),
        class_names_(std::move(class_names)),
        pixels_(std::move(pixels)),
        labels_(std::move(labels)) {
    WEFT_ASSERT(pixels_.size() == labels_.size() * image_bytes());
  }
  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  ImageFormat format() const override { return format_; }
  int64_t label(int64_t index) const override { return labels_.at(index); }
  Example example(int64_t index) const override {
    Example example{Image(format_.height, format_.width), label(index)};
    std::memcpy(example.image.pixels.data(), &pixels_[index * image_bytes()], image_bytes());
    return example;
  }

 private:
  size_t image_bytes() const { return size_t{3} * format_.height * format_.width; }

  const ImageFormat format_;
  const std::vector<std::string> class_names_;
  const std::vector<uint8_t> pixels_, labels_;
};

/// Some examples of `base`, under other labels where `new_labels` has any.
class View : public Dataset {
 public:
  View(DatasetPtr base, std::vector<int64_t> indices, std::vector<std::string> class_names,
       std::vector<int64_t> new_labels)
      : base_(std::move(base)),
        indices_(std::move(indices)),
        class_names_(std::move(class_names)),
        new_labels_(std::move(new_labels)) {}
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  ImageFormat format() const override { return base_->format(); }
  int64_t label(int64_t index) const override { return shown(base_->label(indices_.at(index))); }
  Example example(int64_t index) const override {
    Example example = base_->example(indices_.at(index));
    example.label = shown(example.label);
    return example;
  }

 private:
  int64_t shown(int64_t label) const { return new_labels_.empty() ? label : new_labels_[label]; }

  const DatasetPtr base_;
  const std::vector<int64_t> indices_;
  const std::vector<std::string> class_names_;
  const std::vector<int64_t> new_labels_;
};

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(end - begin);
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

}  // namespace

DatasetPtr memory_dataset(ImageFormat format, std::vector<std::string> class_names,
                          std::vector<uint8_t> pixels, std::vector<uint8_t> labels) {
  return std::make_shared<MemoryDataset>(format, std::move(class_names), std::move(pixels),
                                         std::move(labels));
}

DatasetPtr subset(DatasetPtr base, std::vector<int64_t> indices) {
  for (const int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < base->size(), "subset: index {} of {} examples", index,
               base->size());
  }
  const std::vector<std::string> class_names = base->class_names();
  return std::make_shared<View>(std::move(base), std::move(indices), class_names,
                                std::vector<int64_t>());
}

DatasetPtr subset(DatasetPtr base, int64_t begin, int64_t end) {
  WEFT_CHECK(begin <= end, "subset: begin {} is after end {}", begin, end);
  return subset(std::move(base), range(begin, end));
}

DatasetPtr relabel(DatasetPtr base, const std::vector<std::string>& class_names) {
  if (base->class_names() == class_names) return base;
  std::vector<int64_t> new_labels;
  for (const std::string& name : base->class_names()) {
    const auto found = std::ranges::find(class_names, name);
    WEFT_CHECK(found != class_names.end(), "class '{}' of the data is not one of '{}'", name,
               fmt::join(class_names, "', '"));
    new_labels.push_back(found - class_names.begin());
  }
  std::vector<int64_t> all = range(0, base->size());
  return std::make_shared<View>(std::move(base), std::move(all), class_names,
                                std::move(new_labels));
}

}  // namespace weft::data
