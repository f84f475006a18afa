// A batch of images from bytes: normalised, erased, mixed.
//
//   u[n, c, h, w] = 0 inside of image n's erased rectangle, else values[c, x[n, c, h, w]]
//   y[n] = keep * u[n] + (1 - keep) * u[n - 1]           everywhere, mixup; u[n] where keep is 1
//   y[n] = u[n - 1]                                      inside the cut rectangle, cutmix
//
// Image -1 is the last one. In f32, each operation rounded, in this order, and then rounded to y's
// dtype: the bits of data/transforms.h and data/mix.h. A byte has 256 values, so a table stands for
// (x / 255 - mean) / std. Zhang et al., "mixup", 2017; Yun et al., "CutMix", 2019; Zhong et al.,
// "Random Erasing Data Augmentation", 2017.
//
// x: u8 [N, 3, H, W]; values: f32 [3, 256]; erased: i32 [N, 4], top, left, height and width of a
// rectangle inside the image, or undefined; all contiguous. y: f32, f16 or bf16 [N, 3, H, W],
// contiguous; assigned (=), no memory of the others. It moves a byte and y's element for each
// element, and as many bytes again where images are mixed.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct NormalizeImagesProblem {
  Tensor x, values, erased, y;
  float keep = 1;
  int cut_top = 0, cut_left = 0, cut_height = 0, cut_width = 0;  // none where it has no pixels

  bool mixes() const { return keep != 1 || cut_height * cut_width > 0; }
  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const {
    return fmt::format("normalize_images({}, {}{})", x, y.dtype(), mixes() ? ", mixed" : "");
  }
};

WEFT_DECLARE_OP(normalize_images, NormalizeImagesProblem);

}  // namespace weft::kernels
