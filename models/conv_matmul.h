// A convolution as the matrix product that im2col makes of it.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

/// Of one image whose maps have the given side, which becomes that of the result.
inline Matmul conv_matmul(const nn::Conv2d& conv, int64_t& side) {
  const auto& o = conv.options;
  side = (side + 2 * o.padding[0] - conv.weight.size(2)) / o.stride[0] + 1;
  const int64_t out = conv.weight.size(0);
  return {.name = "conv", .m = side * side, .n = out, .k = conv.weight.numel() / out};
}

}  // namespace weft::models
