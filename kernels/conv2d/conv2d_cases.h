// Shapes and dtypes that conv2d is tested and timed on.
#pragma once

#include "core/view.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// A convolution's sizes; rows and columns alike but for the kernel.
struct ConvShape {
  int64_t N, C, H, W, K, R, S;
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  int64_t extra = 0;  // outputs beyond the symmetric padding's, at the lower right
};

struct ConvOptions {
  bool integers = false, strided = false, channels_last = false, bias = true;
  bool wide = false;   // f32 bias, dw and dbias
  bool exact = false;  // the bounds of ieee sums hold for exact ones
  bool timed = false;
};

/// The reference's values in the order of the memory that the case made: a y that lies as
/// [N, P, Q, K] was made under that shape.
inline std::vector<Expected> conv2d_reference_as_stored(const Conv2dProblem& p) {
  std::vector<Expected> expected = conv2d_reference(p);
  if (p.pass() != Conv2dPass::kForward || p.y.is_contiguous()) return expected;
  if (!view::permute(p.y, {0, 2, 3, 1}).is_contiguous()) return expected;
  const int64_t K = p.y.shape()[1], pixels = p.y.shape()[2] * p.y.shape()[3];
  const Expected by_channel = expected[0];
  for (size_t i = 0; i < by_channel.values.size(); ++i) {
    const int64_t n = i / (K * pixels), k = i / pixels % K, pixel = i % pixels;
    expected[0].values[(n * pixels + pixel) * K + k] = by_channel.values[i];
    expected[0].bounds[(n * pixels + pixel) * K + k] = by_channel.bounds[i];
  }
  return expected;
}

inline OpTable conv2d_table() {
  using Problem = Conv2dProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](ConvShape s, DType dtype, Conv2dPass pass, ConvOptions options = {}) {
    const Shape image = {s.N, s.C, s.H, s.W}, filter = {s.K, s.C / s.groups, s.R, s.S};
    const Shape result = {s.N, s.K,
                          conv2d_output_size(s.H, s.R, s.stride, s.padding, s.dilation) + s.extra,
                          conv2d_output_size(s.W, s.S, s.stride, s.padding, s.dilation) + s.extra};
    constexpr const char* kPasses[] = {"forward", "dx", "dw"};
    const std::string name = fmt::format(
        "{}_{}_s{}_p{}_d{}_g{}{}_{}_{}{}{}{}{}{}{}", to_string(image), to_string(filter), s.stride,
        s.padding, s.dilation, s.groups, s.extra ? "_uneven" : "", dtype,
        kPasses[static_cast<int>(pass)], options.integers ? "_integers" : "",
        options.strided ? "_strided" : "", options.channels_last ? "_last" : "",
        options.bias ? "" : "_plain", options.wide ? "_wide" : "", options.exact ? "_exact" : "");
    Cost cost;
    if (options.timed) {
      cost = {.flops = 2.0 * numel(result) * numel(filter) / s.K,
              .bytes = 1.0 * (numel(image) + numel(filter) + numel(result)) * itemsize(dtype)};
    }
    cases.push_back(
        {name,
         [=](Inputs& in) {
           const auto input = [&](const Shape& shape, DType type) {
             const Tensor t = options.integers ? in.integers(shape, type) : in.normal(shape, type);
             return options.strided ? in.strided(t) : t;
           };
           // [N, K, P, Q] in memory that is [N, P, Q, K].
           const auto last = [&](const Tensor& t) { return view::permute(t, {0, 3, 1, 2}); };
           const Shape last_shape = {result[0], result[2], result[3], result[1]};
           const DType parameters = options.wide ? DType::f32 : dtype;
           Problem p{.stride = {s.stride, s.stride},
                     .padding = {s.padding, s.padding},
                     .dilation = {s.dilation, s.dilation},
                     .groups = s.groups};
           if (options.exact) p.numerics = {Accumulation::kExact};
           if (pass != Conv2dPass::kDataGradient) p.x = input(image, dtype);
           if (pass != Conv2dPass::kWeightGradient) p.w = input(filter, dtype);
           if (pass == Conv2dPass::kForward) {
             if (options.bias) p.bias = input({s.K}, parameters);
             p.y = options.channels_last ? last(in.output(last_shape, dtype))
                   : options.strided     ? in.strided_output(result, dtype)
                                         : in.output(result, dtype);
             return p;
           }
           p.dy = options.channels_last ? last(input(last_shape, dtype)) : input(result, dtype);
           if (pass == Conv2dPass::kDataGradient) {
             p.dx = options.strided ? in.strided_output(image, dtype) : in.output(image, dtype);
           } else {
             p.dw = options.strided ? in.strided_output(filter, parameters)
                                    : in.output(filter, parameters);
             if (options.bias) p.dbias = in.output({s.K}, parameters);
           }
           return p;
         },
         cost});
  };
  constexpr Conv2dPass kAllPasses[] = {Conv2dPass::kForward, Conv2dPass::kDataGradient,
                                       Conv2dPass::kWeightGradient};
  for (Conv2dPass pass : kAllPasses) {
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (int64_t width : {1, 15, 16, 17, 31, 32, 33}) {
        add({2, 3, 4, width, 5, 3, 3, 1, 1}, dtype, pass);
      }
      const ConvShape shapes[] = {
          {2, 17, 7, 11, 33, 3, 3, 2, 1},        // sizes off any vector
          {3, 4, 9, 8, 6, 3, 2, 2, 1, 2, 2},     // everything at once
          {2, 8, 6, 6, 8, 3, 3, 1, 1, 1, 8},     // depthwise
          {2, 16, 5, 7, 9, 1, 1},                // pointwise
          {2, 5, 8, 8, 7, 1, 1, 2},              // ResNet's projection
          {1, 3, 6, 7, 4, 5, 5, 1, 0},           // the kernel nearly fills the image
          {37, 2, 5, 5, 3, 3, 3, 1, 1},          // blocks of images and a rest
          {2, 3, 6, 6, 4, 2, 2, 2, 0},           // patches
          {2, 3, 7, 9, 4, 2, 4, 2, 0},           // overlapping by one axis only
          {3, 2, 11, 7, 5, 3, 3, 3, 0},          // patches that leave a margin
          {2, 3, 5, 6, 4, 2, 2, 1, 0, 1, 1, 1},  // padding behind the image only
          {2, 3, 3, 3, 4, 3, 3, 1, 3},           // windows that read padding alone
      };
      for (const ConvShape& shape : shapes) {
        add(shape, dtype, pass);
        add(shape, dtype, pass, {.integers = true, .wide = dtype != DType::f64});
      }
      add(shapes[0], dtype, pass, {.exact = true});
      add(shapes[7], dtype, pass, {.exact = true});
      add(shapes[1], dtype, pass, {.strided = true});
      add(shapes[7], dtype, pass, {.strided = true, .bias = false});
      add(shapes[7], dtype, pass, {.channels_last = true});
      add(shapes[0], dtype, pass, {.channels_last = true, .bias = false});
      for (const ConvShape& shape :
           {ConvShape{0, 3, 4, 4, 2, 3, 3}, ConvShape{2, 0, 4, 4, 2, 3, 3},
            ConvShape{2, 3, 4, 4, 0, 3, 3}, ConvShape{0, 3, 4, 4, 2, 2, 2, 2}}) {
        add(shape, dtype, pass);
      }
    }
    // The compact CCT's stages, a ResNet block and stem, and half an image of ViT-B/16's patch
    // embedding.
    for (DType dtype : {DType::f32, DType::bf16}) {
      const ConvOptions timed = {.wide = true, .timed = true};
      add({8, 3, 32, 32, 64, 3, 3, 1, 1}, dtype, pass, timed);
      add({4, 64, 16, 16, 128, 3, 3, 1, 1}, dtype, pass, timed);
      add({8, 16, 32, 32, 16, 3, 3, 1, 1}, dtype, pass, timed);
      add({1, 3, 224, 112, 768, 16, 16, 16}, dtype, pass, timed);
    }
    add({1, 3, 64, 64, 64, 7, 7, 2, 3}, DType::f32, pass, {.timed = true});
  }
  return make_table(conv2d_op(), std::move(cases), conv2d_reference_as_stored);
}

}  // namespace weft::kernels
