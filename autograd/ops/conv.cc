// Convolution and pooling of images [N, C, H, W].
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/pool2d/pool2d.h"

namespace weft::ops {
namespace {

using kernels::Conv2dProblem;
using kernels::Pool2dProblem;

void check_image(std::string_view op, const Tensor& x) {
  raw::check_floating(op, x);
  WEFT_CHECK(x.dim() == 4, "{}: expected images [N, C, H, W], got {}", op, x);
}

Tensor pool(std::string_view op, const Tensor& x, const Pool2dOptions& options,
            kernels::PoolKind kind) {
  check_image(op, x);
  Shape shape = {x.size(0), x.size(1)};
  for (int i = 0; i < 2; ++i) {
    WEFT_CHECK(options.kernel[i] > 0 && options.stride[i] > 0 && options.padding[i] >= 0 &&
                   2 * options.padding[i] <= options.kernel[i],
               "{}: expected a positive kernel and stride and a padding of at most half the "
               "kernel, got {}, {}, {}",
               op, options.kernel[i], options.stride[i], options.padding[i]);
    shape.push_back(kernels::pool2d_output_size(x.size(2 + i), options.kernel[i], options.stride[i],
                                                options.padding[i]));
    WEFT_CHECK(shape.back() > 0, "{}: a window of {} is larger than the padded images {}", op,
               options.kernel[i], x);
  }
  Pool2dProblem p{.kind = kind,
                  .kernel = options.kernel,
                  .stride = options.stride,
                  .padding = options.padding,
                  .count_include_pad = options.count_include_pad};
  Pool2dProblem forward = p;
  forward.x = x;
  forward.y = Tensor::empty(shape, x.dtype(), x.device());
  const bool is_max = kind == kernels::PoolKind::kMax;
  if (is_max && is_recording({x})) forward.indices = Tensor::empty(shape, DType::i32, x.device());
  kernels::pool2d(forward);
  return record(op, {x}, forward.y, {forward.indices},
                [p, shape = x.shape()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  Pool2dProblem backward = p;
                  backward.dy = b.dy();
                  backward.dx = Tensor::empty(shape, b.dy().dtype(), b.dy().device());
                  backward.indices = b.saved(0);
                  kernels::pool2d(backward);
                  return {backward.dx};
                });
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  check_image("conv2d", input);
  raw::check_operands("conv2d", {input, weight, bias}, 2);
  const int64_t groups = options.groups;
  WEFT_CHECK(weight.dim() == 4 && groups > 0 && input.size(1) == weight.size(1) * groups &&
                 weight.size(0) % groups == 0,
             "conv2d: images {} and weight {} do not fit together with {} groups", input, weight,
             groups);
  WEFT_CHECK(!bias.defined() || bias.shape() == Shape{weight.size(0)},
             "conv2d: expected a bias of shape [{}], got {}", weight.size(0), bias);
  Shape shape = {input.size(0), weight.size(0)};
  for (int i = 0; i < 2; ++i) {
    WEFT_CHECK(
        options.stride[i] > 0 && options.dilation[i] > 0 && options.padding[i] >= 0,
        "conv2d: stride and dilation must be positive and padding not negative, got {}, {}, {}",
        options.stride[i], options.dilation[i], options.padding[i]);
    shape.push_back(kernels::conv2d_output_size(input.size(2 + i), weight.size(2 + i),
                                                options.stride[i], options.padding[i],
                                                options.dilation[i]));
    WEFT_CHECK(shape.back() > 0, "conv2d: weight {} is larger than the padded images {}", weight,
               input);
  }
  const DType dtype = autocast_products(input, weight);
  const Tensor x = cast(input, dtype), w = autocast_weight(weight, dtype);
  Conv2dProblem p{.stride = options.stride,
                  .padding = options.padding,
                  .dilation = options.dilation,
                  .groups = groups};
  Conv2dProblem forward = p;
  forward.x = x, forward.w = w, forward.bias = bias;
  forward.y = Tensor::empty(shape, dtype, x.device());
  kernels::conv2d(forward);
  return record("conv2d", {x, weight, bias}, forward.y, {x, w},
                [=, wide = weight.dtype()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor x = b.saved(0), w = b.saved(1), dy = cast(b.dy(), x.dtype());
                  Tensor dx, dw, db;
                  if (b.needs(0)) {
                    Conv2dProblem data = p;
                    data.w = w, data.dy = dy;
                    data.dx = dx = raw::empty_like(x);
                    kernels::conv2d(data);
                  }
                  if (b.needs(1) || b.needs(2)) {
                    Conv2dProblem filter = p;
                    filter.x = x, filter.dy = dy;
                    filter.dw = dw = Tensor::empty(w.shape(), wide, x.device());
                    if (b.needs(2))
                      filter.dbias = db = Tensor::empty({w.size(0)}, wide, x.device());
                    kernels::conv2d(filter);
                  }
                  return {dx, dw, db};
                });
}

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return pool("max_pool2d", x, options, kernels::PoolKind::kMax);
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return pool("avg_pool2d", x, options, kernels::PoolKind::kAverage);
}

}  // namespace weft::ops
