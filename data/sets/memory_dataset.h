// A data set of equally sized images held in memory.
#pragma once

#include <cstring>
#include <utility>

#include "core/error.h"
#include "data/dataset.h"

namespace weft::data {

class MemoryDataset : public Dataset {
 public:
  /// pixels: one image after the other, each as Image's.
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

  ImageFormat format_;
  std::vector<std::string> class_names_;
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
};

}  // namespace weft::data
