// Position embeddings for another image size than they were trained for.
//
// The embeddings [1, prefix + rows * rows, W] of a square grid of patches are resampled as an image
// of W channels; the prefix (the class token's row) is kept. Two rules are in use:
//
//   torchvision  bicubic with a = -3/4, the corners aligned, rows outside repeated:
//                interpolate(mode="bicubic", align_corners=True)
//   timm         bicubic with a = -1/2, pixel centres aligned, the filter widened when shrinking
//                and cut off at the border: interpolate(mode="bicubic", antialias=True)
//
// Keys, "Cubic convolution interpolation for digital image processing", 1981. Computed in f64 and
// rounded once.
#pragma once

#include <string_view>

#include "core/tensor.h"

namespace weft::train {

enum class Interpolation { kTorchvision, kTimm };

/// "torchvision" or "timm". Throws Error naming both.
Interpolation parse_interpolation(std::string_view text);

/// A new tensor of `tokens` rows and the same dtype. Throws Error unless, without the prefix, both
/// numbers of rows are squares.
Tensor interpolate_positions(const Tensor& embedding, int64_t tokens, int64_t prefix,
                             Interpolation rule);

}  // namespace weft::train
