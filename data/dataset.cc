#include "data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"

namespace weft::data {
namespace {

class MemoryDataset : public Dataset {
 public:
  MemoryDataset(ImageFormat format, std::vector<std::string> class_names,
                std::vector<uint8_t> pixels, const std::vector<uint8_t>& labels)
      : pixels_(std::move(pixels)) {
    format_ = format;
    class_names_ = std::move(class_names);
    labels_.assign(labels.begin(), labels.end());
    WEFT_ASSERT(pixels_.size() ==
                labels_.size() * Image(format.height, format.width).pixels.size());
  }
  Image image(int64_t index) const override {
    Image image(format_.height, format_.width);
    const size_t bytes = image.pixels.size();
    std::memcpy(image.pixels.data(), &pixels_.at(index * bytes), bytes);
    return image;
  }

 private:
  const std::vector<uint8_t> pixels_;
};

/// Images of `base`, under labels of its own.
class View : public Dataset {
 public:
  View(DatasetPtr base, std::vector<int64_t> indices, std::vector<std::string> class_names,
       std::vector<int64_t> labels)
      : base_(std::move(base)), indices_(std::move(indices)) {
    format_ = base_->format();
    class_names_ = std::move(class_names);
    labels_ = std::move(labels);
  }
  std::string name(int64_t index) const override { return base_->name(indices_.at(index)); }
  std::string left_out() const override { return base_->left_out(); }
  Image image(int64_t index) const override { return base_->image(indices_.at(index)); }

 private:
  const DatasetPtr base_;
  const std::vector<int64_t> indices_;
};

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(end - begin);
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

}  // namespace

DatasetPtr memory_dataset(ImageFormat format, std::vector<std::string> class_names,
                          std::vector<uint8_t> pixels, std::vector<uint8_t> labels) {
  return std::make_shared<MemoryDataset>(format, std::move(class_names), std::move(pixels), labels);
}

DatasetPtr subset(DatasetPtr base, std::vector<int64_t> indices) {
  std::vector<int64_t> labels;
  for (const int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < base->size(), "subset: index {} of {} examples", index,
               base->size());
    labels.push_back(base->label(index));
  }
  return std::make_shared<View>(base, std::move(indices), base->class_names(), std::move(labels));
}

DatasetPtr subset(DatasetPtr base, int64_t begin, int64_t end) {
  WEFT_CHECK(begin <= end, "subset: begin {} is after end {}", begin, end);
  return subset(std::move(base), range(begin, end));
}

DatasetPtr relabel(DatasetPtr base, const std::vector<std::string>& class_names) {
  if (base->class_names() == class_names) return base;
  std::vector<int64_t> new_label, labels;
  for (const std::string& name : base->class_names()) {
    const auto found = std::ranges::find(class_names, name);
    WEFT_CHECK(found != class_names.end(), "class '{}' of the data is not one of '{}'", name,
               fmt::join(class_names, "', '"));
    new_label.push_back(found - class_names.begin());
  }
  for (int64_t i = 0; i < base->size(); ++i) labels.push_back(new_label.at(base->label(i)));
  return std::make_shared<View>(base, range(0, base->size()), class_names, std::move(labels));
}

}  // namespace weft::data
