// Batches of images that normalize_images is tested and timed on.
#pragma once

#include "kernels/normalize_images/normalize_images.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable normalize_images_table() {
  using Problem = NormalizeImagesProblem;
  std::vector<Case<Problem>> cases;
  struct Mix {
    std::string name;
    float keep = 1;
    bool cuts = false;
  };
  const auto make = [](Inputs& in, const Shape& shape, DType dtype, const Mix& mix, bool erases) {
    const auto height = static_cast<int>(shape[2]), width = static_cast<int>(shape[3]);
    Problem p{.x = in.integers(shape, DType::u8, 0, 255),
              .values = in.normal({3, 256}, DType::f32)};
    if (erases) {
      // A third of a side, at another place in each image; the first has none.
      std::vector<double> rectangles;
      for (int64_t n = 0; n < shape[0]; ++n) {
        const auto top = static_cast<double>(n % std::max(1, height - height / 3));
        const auto left = static_cast<double>(2 * n % std::max(1, width - width / 3));
        rectangles.insert(rectangles.end(), {top, left, n == 0 ? 0.0 : height / 3, width / 3.0});
      }
      for (double& value : rectangles) value = std::floor(value);
      p.erased = in.values(rectangles, {shape[0], 4}, DType::i32);
    }
    p.keep = mix.keep;
    if (mix.cuts) {
      p.cut_top = height / 4;
      p.cut_left = width / 5;
      p.cut_height = height / 2;
      p.cut_width = width / 2;
    }
    p.y = in.output(shape, dtype);
    return p;
  };
  const Mix mixes[] = {{"plain"}, {"mixup", 0.3f}, {"cutmix", 1, true}};
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Shape& shape : {Shape{3, 3, 8, 8}, {2, 3, 5, 7}, {1, 3, 1, 33}, {4, 3, 31, 32}}) {
      for (const Mix& mix : mixes) {
        for (const bool erases : {false, true}) {
          cases.push_back({fmt::format("{}_{}_{}{}", to_string(shape), dtype, mix.name,
                                       erases ? "_erased" : ""),
                           [=](Inputs& in) { return make(in, shape, dtype, mix, erases); }});
        }
      }
    }
    cases.push_back({fmt::format("empty_{}", dtype), [=](Inputs& in) {
                       return make(in, {0, 3, 4, 4}, dtype, {}, false);
                     }});
    cases.push_back(
        {fmt::format("batch_{}", dtype),
         [=](Inputs& in) {
           return make(in, {4, 3, 224, 224}, dtype, {}, false);
         },
         {.bytes = 4.0 * 3 * 224 * 224 * (1.0 + static_cast<double>(itemsize(dtype)))}});
  }
  return make_table(normalize_images_op(), std::move(cases), normalize_images_reference);
}

}  // namespace weft::kernels
