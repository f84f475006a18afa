// Convolution and pooling of images [N, C, H, W], and convolution of sequences.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/pool2d/pool2d.h"

namespace weft::ops {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;
using kernels::Pool2dProblem;

void check_image(std::string_view op, const Tensor& x) {
  raw::check_floating(op, x);
  WEFT_CHECK(x.dim() == 4, "{}: expected images [N, C, H, W], got {}", op, x);
}

/// The three maps of a convolution, each linear in two of image, filter and result, each in the
/// dtype of its first operand and with the others for gradients:
///   forward (x, w) to y, data gradient (dy, w) to dx, weight gradient (x, dy) to dw.
Tensor convolve(const Conv2dProblem& geometry, Conv2dPass pass, const Tensor& a, const Tensor& b,
                const Shape& shape) {
  Conv2dProblem p = geometry;
  const Tensor out = Tensor::empty(shape, a.dtype(), a.device());
  (pass == Conv2dPass::kDataGradient ? p.dy : p.x) = a;
  (pass == Conv2dPass::kWeightGradient ? p.dy : p.w) = b;
  (pass == Conv2dPass::kForward ? p.y : pass == Conv2dPass::kDataGradient ? p.dx : p.dw) = out;
  kernels::conv2d(p);
  return record("conv2d", {a, b}, out, {a, b},
                [geometry, pass, dtype = a.dtype(), of_a = a.shape(),
                 of_b = b.shape()](const Backward& g) -> Tensors {
                  const Tensor dout = cast(g.dy(), dtype);
                  const auto map = [&](Conv2dPass to, const Tensor& x, const Tensor& y,
                                       const Shape& shape) {
                    return convolve(geometry, to, x, y, shape);
                  };
                  constexpr auto kForward = Conv2dPass::kForward, kData = Conv2dPass::kDataGradient,
                                 kWeight = Conv2dPass::kWeightGradient;
                  Tensor da, db;
                  if (g.needs(0)) {
                    const Tensor b = g.saved(1);
                    da = pass == kForward ? map(kData, dout, b, of_a)
                         : pass == kData  ? map(kForward, dout, b, of_a)
                                          : map(kData, b, dout, of_a);
                  }
                  if (g.needs(1)) {
                    const Tensor a = g.saved(0);
                    db = pass == kForward ? map(kWeight, a, dout, of_b)
                         : pass == kData  ? map(kWeight, dout, a, of_b)
                                          : map(kForward, a, dout, of_b);
                  }
                  return {da, db};
                });
}

/// How many windows there are along dimension 2 + d of the images.
int64_t count_windows(std::string_view op, const Tensor& x, const Pool2dOptions& options, int d) {
  const int64_t size = x.size(2 + d), kernel = options.kernel[d], stride = options.stride[d],
                padding = options.padding[d], dilation = options.dilation[d];
  WEFT_CHECK(kernel > 0 && stride > 0 && dilation > 0 && padding >= 0,
             "{}: expected a positive kernel, stride and dilation and no negative padding, got {}, "
             "{}, {}, {}",
             op, kernel, stride, dilation, padding);
  WEFT_CHECK(padding <= INT32_MAX && kernel <= INT32_MAX && dilation <= INT32_MAX,
             "{}: expected a kernel, dilation and padding below 2^31, got {}, {}, {}", op, kernel,
             dilation, padding);
  const int64_t reach = dilation * (kernel - 1) + 1;
  WEFT_CHECK(2 * padding <= reach,
             "{}: expected a padding of at most half the kernel, which reaches over {}, got {}", op,
             reach, padding);
  const int64_t windows =
      kernels::pool2d_output_size(size, kernel, stride, padding, dilation, options.ceil_mode);
  WEFT_CHECK(windows > 0, "{}: a window of {} is larger than the padded images {}", op, reach, x);
  // One that begins in the padding may step over a small image.
  for (int64_t i = 0; dilation > 1 && i < windows && i * stride < padding; ++i) {
    const int64_t begin = i * stride - padding, steps = (dilation - 1 - begin) / dilation;
    WEFT_CHECK(steps < kernel && begin + steps * dilation < size,
               "{}: a window of {} steps of {} holds no pixel of images {}", op, kernel, dilation,
               x);
  }
  return windows;
}

/// {y, i32 places of maxima or undefined}; where they are not wanted they are made for a gradient.
std::pair<Tensor, Tensor> pool(std::string_view op, const Tensor& x, const Pool2dOptions& asked,
                               kernels::PoolKind kind, bool wants_places = false) {
  if (x.defined() && x.dim() == 3) {
    auto [y, places] = pool(op, unsqueeze(x, 0), asked, kind, wants_places);
    return {squeeze(y, 0), places.defined() ? squeeze(places, 0) : places};
  }
  check_image(op, x);
  const Shape shape = {x.size(0), x.size(1), count_windows(op, x, asked, 0),
                       count_windows(op, x, asked, 1)};
  // A longer stride leads out of the image, too, and kernels need not think of its size.
  Pool2dOptions options = asked;
  for (int d = 0; d < 2; ++d) {
    options.stride[d] =
        std::min(options.stride[d], std::max<int64_t>(1, x.size(2 + d) + 2 * options.padding[d]));
  }
  Pool2dProblem p{.kind = kind,
                  .kernel = options.kernel,
                  .stride = options.stride,
                  .padding = options.padding,
                  .dilation = options.dilation,
                  .count_include_pad = options.count_include_pad};
  Pool2dProblem forward = p;
  forward.x = x;
  forward.y = Tensor::empty(shape, x.dtype(), x.device());
  const bool is_max = kind == kernels::PoolKind::kMax;
  if (wants_places || (is_max && is_recording({x}))) {
    forward.indices = Tensor::empty(shape, DType::i32, x.device());
  }
  kernels::pool2d(forward);
  const Tensor y = record(
      op, {x}, forward.y, {forward.indices}, [=, shape = x.shape()](const Backward& b) -> Tensors {
        Pool2dProblem backward = p;
        backward.dy = b.dy();
        backward.dx = Tensor::empty(shape, b.dy().dtype(), b.dy().device());
        backward.indices = b.saved(0);
        kernels::pool2d(backward);
        // It is linear in dy: its gradient pools the same windows' means, or elements.
        return {record(op, {b.dy()}, backward.dx, {backward.indices},
                       [=](const Backward& g) -> Tensors {
                         if (!is_max) return {avg_pool2d(g.dy(), options)};
                         const Tensor places = g.saved(0);
                         const Shape& s = places.shape();
                         const Tensor planes = reshape(g.dy(), {s[0], s[1], shape[2] * shape[3]});
                         const Tensor flat = reshape(places, {s[0], s[1], s[2] * s[3]});
                         return {reshape(gather(planes, 2, flat), s)};
                       })};
      });
  return {y, forward.indices};
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
  raw::check_f64("conv2d", {input, weight, bias});
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
  return record("conv2d", {x, weight, bias}, forward.y, {x, w, weight},
                [=, wide = weight.dtype(), of_x = x.shape(),
                 of_weight = weight.shape()](const Backward& b) -> Tensors {
                  // As linear, it looks at no tensor that it does not need.
                  const Tensor dy = cast(b.dy(), dtype);
                  Tensor dx, dw, db;
                  if (b.create_graph()) {
                    if (b.needs(0)) {
                      const Tensor narrow = cast(b.saved(2), dtype);
                      dx = convolve(p, Conv2dPass::kDataGradient, dy, narrow, of_x);
                    }
                    if (b.needs(1)) {
                      dw = convolve(p, Conv2dPass::kWeightGradient, b.saved(0), dy, of_weight);
                    }
                    if (b.needs(2)) db = cast(sum(dy, {0, 2, 3}), wide);
                    return {dx, b.needs(1) ? cast(dw, wide) : dw, db};
                  }
                  if (b.needs(0)) {
                    Conv2dProblem data = p;
                    data.w = b.saved(1), data.dy = dy;
                    data.dx = dx = Tensor::empty(of_x, dtype, dy.device());
                    kernels::conv2d(data);
                  }
                  if (b.needs(1) || b.needs(2)) {
                    Conv2dProblem filter = p;
                    filter.x = b.saved(0), filter.dy = dy;
                    filter.dw = dw = Tensor::empty(of_weight, wide, dy.device());
                    if (b.needs(2))
                      filter.dbias = db = Tensor::empty({of_weight[0]}, wide, dy.device());
                    kernels::conv2d(filter);
                  }
                  return {dx, dw, db};
                });
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  raw::check_operands("conv1d", {x, weight, bias}, 2);
  WEFT_CHECK(x.dim() == 3 && weight.dim() == 3,
             "conv1d: expected sequences [N, C, L] and a weight [O, C/groups, K], got {} and {}", x,
             weight);
  // Images of one row.
  return squeeze(conv2d(unsqueeze(x, 2), unsqueeze(weight, 2), bias,
                        {.stride = {1, options.stride},
                         .padding = {0, options.padding},
                         .dilation = {1, options.dilation},
                         .groups = options.groups}),
                 2);
}

Tensor conv_transpose2d(const Tensor& input, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  check_image("conv_transpose2d", input);
  raw::check_operands("conv_transpose2d", {input, weight, bias}, 2);
  const int64_t groups = options.groups;
  WEFT_CHECK(weight.dim() == 4 && groups > 0 && input.size(1) == weight.size(0) &&
                 weight.size(0) % groups == 0,
             "conv_transpose2d: images {} and weight {} do not fit together with {} groups", input,
             weight, groups);
  const int64_t channels = weight.size(1) * groups;
  WEFT_CHECK(!bias.defined() || bias.shape() == Shape{channels},
             "conv_transpose2d: expected a bias of shape [{}], got {}", channels, bias);
  Shape shape = {input.size(0), channels};
  for (int i = 0; i < 2; ++i) {
    const int64_t stride = options.stride[i], dilation = options.dilation[i],
                  added = options.output_padding[i];
    WEFT_CHECK(stride > 0 && dilation > 0 && options.padding[i] >= 0 && added >= 0 &&
                   added < std::max(stride, dilation),
               "conv_transpose2d: expected a positive stride and dilation, a padding that is not "
               "negative, and an output padding less than stride or dilation, got {}, {}, {}, {}",
               stride, dilation, options.padding[i], added);
    shape.push_back((input.size(2 + i) - 1) * stride - 2 * options.padding[i] +
                    dilation * (weight.size(2 + i) - 1) + added + 1);
    WEFT_CHECK(shape.back() > 0, "conv_transpose2d: {} leaves no pixel of images {}", weight,
               input);
  }
  const DType dtype = autocast_products(input, weight);
  const Tensor y =
      convolve({.stride = options.stride,
                .padding = options.padding,
                .dilation = options.dilation,
                .groups = groups},
               Conv2dPass::kDataGradient, cast(input, dtype), cast(weight, dtype), shape);
  return bias.defined() ? add(y, cast(reshape(bias, {1, channels, 1, 1}), dtype)) : y;
}

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return pool("max_pool2d", x, options, kernels::PoolKind::kMax).first;
}

std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, const Pool2dOptions& options) {
  const auto [y, places] = pool("max_pool2d", x, options, kernels::PoolKind::kMax, true);
  return {y, cast(places, DType::i64)};
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  WEFT_CHECK(options.dilation == Size2d(1), "avg_pool2d: windows have no dilation, got [{}, {}]",
             options.dilation[0], options.dilation[1]);
  return pool("avg_pool2d", x, options, kernels::PoolKind::kAverage).first;
}

}  // namespace weft::ops
