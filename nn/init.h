// Initialisers: each fills a tensor in place from this thread's generator (autograd/random.h) and
// returns it. Names and formulas are those of torch.nn.init.
//
// On the meta device (nn/meta.h) they draw and leave what they would have filled.
//
// fan_in and fan_out of a weight [out, in, kernel...]: in * kernel elements, and out * kernel ones.
#pragma once

#include "core/tensor.h"

namespace weft::nn::init {

/// With one value.
Tensor zeros(Tensor x);
Tensor ones(Tensor x);
Tensor constant(Tensor x, double value);
/// In [low, high).
Tensor uniform(Tensor x, double low = 0, double high = 1);
/// Of a mean and a standard deviation.
Tensor normal(Tensor x, double mean = 0, double std = 1);
/// Normal, kept inside [low, high]: absolute values, not multiples of std.
Tensor trunc_normal(Tensor x, double mean = 0, double std = 1, double low = -2, double high = 2);

struct Fans {
  int64_t in, out;
};
/// Throws Error naming `op` for fewer than two dimensions.
Fans fans(const Tensor& weight, std::string_view op = "fans");

/// U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)). Glorot, Bengio, AISTATS 2010.
Tensor xavier_uniform(Tensor weight, double gain = 1);
/// U(-b, b) with b = sqrt(6 / ((1 + slope^2) fan_in)). He et al., ICCV 2015; `slope` is that of the
/// leaky ReLU behind the layer.
Tensor kaiming_uniform(Tensor weight, double slope = 0);
enum class Fan { kIn, kOut };
/// N(0, 2 / fan): for layers in front of a ReLU.
Tensor kaiming_normal(Tensor weight, Fan fan = Fan::kIn);

}  // namespace weft::nn::init
