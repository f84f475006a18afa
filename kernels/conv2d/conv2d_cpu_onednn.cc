// oneDNN's direct convolution in its own blocked layouts. Images go in blocks whose size the shape
// decides; one thread takes a block through reorder, convolution and reorder back while it is in
// L2. Every primitive is made for one thread, so that no sum depends on the number of threads:
// oneDNN alone would split the minibatch of a weight gradient among them. Partial weight gradients
// stay in the blocked layout until they are added, in order. Against im2col this saves the copies
// of the columns: a fifth of the time of a 3x3 convolution from 64 to 128 channels in f32, two
// fifths in bf16. f16, and bf16 where the CPU does not multiply it, are widened to f32 block by
// block. The limiter is the multiply-adds.
#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/conv2d/conv2d_shared.h"
#include "kernels/copy/copy.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/onednn.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {
namespace {

using dnnl::memory;

// Elements of the image and the result that one block of images should not exceed: 1 MiB of f32.
constexpr int64_t kBlockElements = int64_t{1} << 18;

memory::desc any_desc(const Shape& shape, DType dtype) {
  return {memory::dims(shape.begin(), shape.end()), onednn_type(dtype), memory::format_tag::any};
}

/// Everything that decides a primitive.
struct Key {
  Conv2dPass pass;
  DType dtype;
  bool bias;
  int64_t images;
  std::array<int64_t, 9> sizes;  // C H W K R S P Q G
  std::array<int64_t, 2> stride, padding, dilation;

  Key(const Conv2dProblem& p, const Conv2dSizes& s, int64_t images)
      : pass(p.pass()),
        dtype(onednn_input(p.dtype())),
        bias(pass == Conv2dPass::kForward && p.bias.defined()),
        images(images),
        sizes{s.C, s.H, s.W, s.K, s.R, s.S, s.P, s.Q, s.G},
        stride(p.stride),
        padding(p.padding),
        dilation(p.dilation) {}
  friend auto operator<=>(const Key&, const Key&) = default;
};

/// Padding behind the image that the last window needs; 0 when it ends inside.
int64_t padding_behind(int64_t size, int64_t kernel, int64_t outputs, int64_t stride,
                       int64_t padding, int64_t dilation) {
  const int64_t end = (outputs - 1) * stride + dilation * (kernel - 1) + 1;
  return std::max<int64_t>(0, end - size - padding);
}

/// One operand: how the caller holds it, how the primitive wants it, and the way between.
struct Operand {
  memory::desc plain, blocked;
  dnnl::reorder reorder;  // none when both are the same

  Operand() = default;
  Operand(const Shape& shape, DType dtype, const memory::desc& blocked, bool is_output)
      : blocked(blocked) {
    const Strides strides = contiguous_strides(shape);
    plain = {memory::dims(shape.begin(), shape.end()), onednn_type(dtype),
             memory::dims(strides.begin(), strides.end())};
    if (plain == blocked) return;
    const memory::desc& from = is_output ? blocked : plain;
    const memory::desc& to = is_output ? plain : blocked;
    reorder = dnnl::reorder({onednn_engine(), from, onednn_engine(), to});
  }
};

struct Primitive {
  Operand image, filter, result;
  memory::desc bias, scratchpad;
  dnnl::primitive convolution;

  explicit Primitive(const Key& key) {
    const auto [C, H, W, K, R, S, P, Q, G] = key.sizes;
    const Shape image_shape = {key.images, C, H, W}, result_shape = {key.images, K, P, Q};
    const Shape filter_shape = G == 1 ? Shape{K, C, R, S} : Shape{G, K / G, C / G, R, S};
    // The partial gradients are sums, which stay wide.
    const bool is_weight_gradient = key.pass == Conv2dPass::kWeightGradient;
    const DType filter_type = is_weight_gradient ? DType::f32 : key.dtype;
    const memory::desc any_image = any_desc(image_shape, key.dtype);
    const memory::desc any_filter = any_desc(filter_shape, filter_type);
    const memory::desc any_result = any_desc(result_shape, key.dtype);
    const auto [down, right] = key.dilation;
    const memory::dims strides(key.stride.begin(), key.stride.end()),
        dilations{down - 1, right - 1};
    const memory::dims before(key.padding.begin(), key.padding.end());
    const memory::dims behind = {padding_behind(H, R, P, key.stride[0], key.padding[0], down),
                                 padding_behind(W, S, Q, key.stride[1], key.padding[1], right)};
    const dnnl::primitive_attr attributes = onednn_attributes();
    constexpr auto kTraining = dnnl::prop_kind::forward_training;
    constexpr auto kDirect = dnnl::algorithm::convolution_direct;
    if (key.bias) bias = memory::desc({K}, memory::data_type::f32, memory::format_tag::a);
    const memory::desc forward_filter = any_desc(filter_shape, key.dtype);
    const dnnl::convolution_forward::desc forward_desc =
        key.bias
            ? dnnl::convolution_forward::desc(kTraining, kDirect, any_image, forward_filter, bias,
                                              any_result, strides, dilations, before, behind)
            : dnnl::convolution_forward::desc(kTraining, kDirect, any_image, forward_filter,
                                              any_result, strides, dilations, before, behind);
    const dnnl::convolution_forward::primitive_desc forward(forward_desc, attributes,
                                                            onednn_engine());
    const auto set = [&](const dnnl::primitive& made, const auto& description,
                         const memory::desc& blocked_image, const memory::desc& blocked_filter,
                         const memory::desc& blocked_result) {
      convolution = made;
      image = {image_shape, key.dtype, blocked_image, key.pass == Conv2dPass::kDataGradient};
      filter = {filter_shape, filter_type, blocked_filter, is_weight_gradient};
      result = {result_shape, key.dtype, blocked_result, key.pass == Conv2dPass::kForward};
      scratchpad = description.scratchpad_desc();
    };
    if (key.pass == Conv2dPass::kForward) {
      set(dnnl::convolution_forward(forward), forward, forward.src_desc(), forward.weights_desc(),
          forward.dst_desc());
    } else if (key.pass == Conv2dPass::kDataGradient) {
      const dnnl::convolution_backward_data::primitive_desc d(
          {kDirect, any_image, any_filter, any_result, strides, dilations, before, behind},
          attributes, onednn_engine(), forward);
      set(dnnl::convolution_backward_data(d), d, d.diff_src_desc(), d.weights_desc(),
          d.diff_dst_desc());
    } else {
      const dnnl::convolution_backward_weights::primitive_desc d(
          {kDirect, any_image, any_filter, any_result, strides, dilations, before, behind},
          attributes, onednn_engine(), forward);
      set(dnnl::convolution_backward_weights(d), d, d.src_desc(), d.diff_weights_desc(),
          d.diff_dst_desc());
    }
  }
};

/// Those of a part of `images` images, and of what is left of a batch.
struct Primitives {
  std::shared_ptr<const Primitive> whole, rest;

  Primitives(const Conv2dProblem& p, const Conv2dSizes& s, int64_t images) {
    const OnednnThreads one(1);
    whole = cached_primitive<Primitive>(Key(p, s, images));
    rest = s.N % images ? cached_primitive<Primitive>(Key(p, s, s.N % images)) : whole;
  }
};

OnednnMemory blocked_input(dnnl::stream& stream, const Operand& operand, const void* data) {
  OnednnMemory plain(operand.plain, data);
  if (!operand.reorder) return plain;
  OnednnMemory blocked(operand.blocked);
  operand.reorder.execute(stream, plain.object, blocked.object);
  return blocked;
}

void store(dnnl::stream& stream, const Operand& operand, const OnednnMemory& blocked, void* data) {
  if (!operand.reorder) return;
  OnednnMemory plain(operand.plain, data);
  memory from = blocked.object;
  operand.reorder.execute(stream, from, plain.object);
}

/// Images that one thread takes at a time in the forward pass and the data gradient.
int64_t images_per_block(const Conv2dSizes& s) {
  const int64_t per_image = s.C * s.H * s.W + s.K * s.P * s.Q;
  return std::clamp<int64_t>(std::min(kBlockElements / per_image, s.N / 16), 1, 16);
}

/// Images [begin, end) of a contiguous tensor, in the dtype that oneDNN multiplies.
Tensor read_images(const Tensor& t, int64_t begin, int64_t end) {
  return contiguous(view::narrow(t, 0, begin, end - begin), onednn_input(t.dtype()));
}

/// Forward and data gradient: the filter is read, and one of image and result is written.
void convolve(const Conv2dProblem& p, const Conv2dSizes& s, const Tensor& in, const Tensor& out) {
  const bool is_forward = p.pass() == Conv2dPass::kForward;
  const Tensor w = contiguous(p.w, onednn_input(p.dtype()));
  const Tensor bias = is_forward && p.bias.defined() ? contiguous(p.bias, DType::f32) : Tensor();
  const int64_t images = images_per_block(s);
  const Primitives made(p, s, images);
  const Primitive &whole = *made.whole, &rest = *made.rest;
  dnnl::stream stream(onednn_engine());
  const auto blocked_filter = [&](const Primitive& primitive) {
    const OnednnThreads one(1);
    return blocked_input(stream, primitive.filter, w.raw());
  };
  const OnednnMemory whole_filter = blocked_filter(whole), rest_filter = blocked_filter(rest);
  parallel_for(s.N, images, [&](int64_t begin, int64_t end) {
    const OnednnThreads one(1);
    const bool is_whole = end - begin == images;
    const Primitive& primitive = is_whole ? whole : rest;
    const Operand& from = is_forward ? primitive.image : primitive.result;
    const Operand& to = is_forward ? primitive.result : primitive.image;
    dnnl::stream own_stream(onednn_engine());
    const Tensor read = read_images(in, begin, end);
    const OnednnMemory source = blocked_input(own_stream, from, read.raw());
    const OnednnMemory scratchpad(primitive.scratchpad);
    std::unordered_map<int, memory> arguments = {
        {is_forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST, source.object},
        {DNNL_ARG_WEIGHTS, (is_whole ? whole_filter : rest_filter).object},
        {DNNL_ARG_SCRATCHPAD, scratchpad.object}};
    if (bias.defined()) {
      arguments.emplace(DNNL_ARG_BIAS, OnednnMemory(primitive.bias, bias.raw()).object);
    }
    const Tensor images_out = view::narrow(out, 0, begin, end - begin);
    write_through(images_out, onednn_input(out.dtype()), [&](const Tensor& written) {
      // In the caller's memory if the layouts agree.
      const OnednnMemory target =
          to.reorder ? OnednnMemory(to.blocked) : OnednnMemory(to.plain, written.raw());
      arguments.emplace(is_forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC, target.object);
      primitive.convolution.execute(own_stream, arguments);
      store(own_stream, to, target, written.raw());
    });
  });
}

void weight_gradient(const Conv2dProblem& p, const Conv2dSizes& s, const Tensor& dw) {
  const Tensor x = contiguous(p.x), dy = contiguous(p.dy);
  const int64_t images = conv2d_images_per_part(s.N, dw.numel());
  const int64_t parts = (s.N + images - 1) / images;
  const Primitives made(p, s, images);
  const Primitive &whole = *made.whole, &rest = *made.rest;
  // Every part takes the layout of the first, so that parts can be added element by element.
  const auto elements = static_cast<int64_t>(whole.filter.blocked.get_size() / sizeof(float));
  const Tensor sums = Tensor::empty({parts, elements});
  parallel_for(s.N, images, [&](int64_t begin, int64_t end) {
    const OnednnThreads one(1);
    const Primitive& primitive = end - begin == images ? whole : rest;
    float* const part = sums.data<float>() + begin / images * elements;
    dnnl::stream stream(onednn_engine());
    const bool same_layout = primitive.filter.blocked == whole.filter.blocked;
    const Tensor read = read_images(x, begin, end), read_dy = read_images(dy, begin, end);
    const OnednnMemory source = blocked_input(stream, primitive.image, read.raw());
    const OnednnMemory gradient = blocked_input(stream, primitive.result, read_dy.raw());
    const OnednnMemory target = same_layout ? OnednnMemory(primitive.filter.blocked, part)
                                            : OnednnMemory(primitive.filter.blocked);
    const OnednnMemory scratchpad(primitive.scratchpad);
    primitive.convolution.execute(stream, {{DNNL_ARG_SRC, source.object},
                                           {DNNL_ARG_DIFF_DST, gradient.object},
                                           {DNNL_ARG_DIFF_WEIGHTS, target.object},
                                           {DNNL_ARG_SCRATCHPAD, scratchpad.object}});
    if (!same_layout) {
      memory from = target.object, to = OnednnMemory(whole.filter.blocked, part).object;
      dnnl::reorder(from, to).execute(stream, from, to);
    }
  });
  add_parts(sums);
  const OnednnThreads one(1);
  dnnl::stream stream(onednn_engine());
  if (whole.filter.reorder) {
    store(stream, whole.filter, OnednnMemory(whole.filter.blocked, sums.raw()), dw.raw());
  } else {
    std::memcpy(dw.raw(), sums.raw(), dw.nbytes());
  }
}

}  // namespace

bool conv2d_fits_onednn(const Conv2dProblem& p) {
  if (!gemm_is<GemmArithmetic::kIeee>(p)) return false;
  // The blocked layout pads the channels of dx to a vector: for the three of an image im2col is
  // three times as quick.
  if (p.pass() == Conv2dPass::kDataGradient && p.groups == 1 && p.image().shape()[1] < 8) {
    return false;
  }
  // oneDNN 2.6 counts what lies within an image in int.
  const auto is_counted = [](const Tensor& t, int64_t parts) {
    return t.numel() / std::max<int64_t>(parts, 1) <= INT32_MAX;
  };
  if (!is_counted(p.image(), p.image().shape()[0]) ||
      !is_counted(p.result(), p.result().shape()[0]) || !is_counted(p.filter(), 1)) {
    return false;
  }
  for (int d = 0; d < 2; ++d) {
    const int64_t size = p.image().shape()[2 + d], kernel = p.filter().shape()[2 + d];
    const int64_t outputs = p.result().shape()[2 + d];
    const int64_t behind =
        padding_behind(size, kernel, outputs, p.stride[d], p.padding[d], p.dilation[d]);
    const int64_t room = size + p.padding[d] + behind - p.dilation[d] * (kernel - 1) - 1;
    if (room < 0 || room / p.stride[d] + 1 != outputs) return false;
  }
  return p.image().numel() > 0 && p.filter().numel() > 0 && p.result().numel() > 0;
}

int64_t conv2d_onednn_scratch(const Conv2dProblem& p) {
  const Conv2dSizes s(p);
  const bool is_weight_gradient = p.pass() == Conv2dPass::kWeightGradient;
  const DType input = onednn_input(p.dtype());
  const int64_t images =
      is_weight_gradient ? conv2d_images_per_part(s.N, p.dw.numel()) : images_per_block(s);
  const int64_t blocks = (s.N + images - 1) / images;
  const Primitives made(p, s, images);
  const Primitive& whole = *made.whole;
  const auto bytes = [](const memory::desc& desc) { return static_cast<int64_t>(desc.get_size()); };
  const auto blocked = [&](const Operand& operand) {
    return operand.reorder ? bytes(operand.blocked) : 0;
  };
  int64_t all = bytes(whole.scratchpad);
  for (const Operand* operand : {&whole.image, &whole.result}) {
    all += blocked(*operand) + (input == p.dtype() ? 0 : bytes(operand->plain));
  }
  for (const Tensor& t : {p.image(), p.result()}) all += write_through_bytes(t, t.dtype());
  if (is_weight_gradient) {
    return all + blocks * bytes(whole.filter.blocked) + write_through_bytes(p.dw, DType::f32);
  }
  // The filter of whole blocks, and that of the last one.
  return all + 2 * blocked(whole.filter) + write_through_bytes(p.w, input);
}

void conv2d_cpu_onednn(const Conv2dProblem& p) {
  const Conv2dSizes s(p);
  switch (p.pass()) {
    case Conv2dPass::kForward:
      return write_through(p.y, p.dtype(),
                           [&](const Tensor& y) { convolve(p, s, contiguous(p.x), y); });
    case Conv2dPass::kDataGradient:
      return write_through(p.dx, p.dtype(),
                           [&](const Tensor& dx) { convolve(p, s, contiguous(p.dy), dx); });
    case Conv2dPass::kWeightGradient:
      write_through(p.dw, DType::f32, [&](const Tensor& dw) { weight_gradient(p, s, dw); });
      return conv2d_bias_gradient(p);
  }
}

}  // namespace weft::kernels
