#include "nn/rms_norm.h"

#include "autograd/ops.h"
#include "nn/init.h"
#include "nn/meta.h"

namespace weft::nn {

RmsNorm::RmsNorm(int64_t width, double eps)
    : weight(parameter("weight", init::ones(blank({width})))), eps(eps) {}

Tensor RmsNorm::forward(const Tensor& x) { return ops::rms_norm(x, weight, eps); }

}  // namespace weft::nn
