// Data sets of labelled images.
//
//   DatasetPtr set = load_cifar10("cifar", Part::kTest);
//   Example e = set->example(0);   // e.image: 32 x 32 RGB, e.label: 0..9
//
// Data sets are immutable and every function may be called from several threads at once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/image.h"

namespace weft::data {

/// (pixel / 255 - mean) / std, per channel.
struct Normalization {
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> std = {1, 1, 1};
  bool operator==(const Normalization&) const = default;
};

inline constexpr Normalization kImageNetNormalization = {{0.485f, 0.456f, 0.406f},
                                                         {0.229f, 0.224f, 0.225f}};
inline constexpr Normalization kCifar10Normalization = {{0.4914f, 0.4822f, 0.4465f},
                                                        {0.2470f, 0.2435f, 0.2616f}};

/// What a data set knows of its images: their size, or the first one's where sizes differ, and the
/// customary normalisation.
struct ImageFormat {
  int height = 0;
  int width = 0;
  Normalization normalization = {};
};

struct Example {
  Image image;
  int64_t label = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  /// Names in label order.
  const std::vector<std::string>& class_names() const { return class_names_; }
  ImageFormat format() const { return format_; }
  int64_t label(int64_t index) const { return labels_.at(index); }
  /// Of the file that an example is in, which tells it from others; empty where it has none.
  virtual std::string name(int64_t) const { return {}; }
  /// A line that counts the images of a folder that are none of its examples; empty without any.
  virtual std::string left_out() const { return {}; }
  /// Throws Error naming the file when it cannot be read.
  virtual Image image(int64_t index) const = 0;
  Example example(int64_t index) const { return {image(index), label(index)}; }

 protected:
  ImageFormat format_;
  std::vector<std::string> class_names_;
  std::vector<int64_t> labels_;  // of each example
};

using DatasetPtr = std::shared_ptr<const Dataset>;

/// Images of format.height x format.width, one after the other in `pixels`, each as Image's.
DatasetPtr memory_dataset(ImageFormat format, std::vector<std::string> class_names,
                          std::vector<uint8_t> pixels, std::vector<uint8_t> labels);

/// The examples of `base` at `indices`, in that order.
DatasetPtr subset(DatasetPtr base, std::vector<int64_t> indices);
/// The examples [begin, end).
DatasetPtr subset(DatasetPtr base, int64_t begin, int64_t end);

/// `base` with labels that count in `class_names`, matched by name: a folder evaluated with the
/// classes of a checkpoint. Throws Error naming a class of `base` that the list lacks; returns
/// `base` itself when the lists are equal.
DatasetPtr relabel(DatasetPtr base, const std::vector<std::string>& class_names);

}  // namespace weft::data
