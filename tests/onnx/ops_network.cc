// Op types of neural networks: products, convolution, pooling, normalisation, losses, optimizers.
#include <cmath>

#include "kernels/adam/adam.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/pool2d/pool2d.h"
#include "kernels/sgd/sgd.h"
#include "tests/onnx/ops.h"

namespace weft::onnx {
namespace {

using enum Accuracy;

Tensors matmul(const Node&, const Tensors& in) { return {ops::matmul(in.at(0), in.at(1))}; }

Tensors gemm(const Node& node, const Tensors& in) {
  Tensor a = in.at(0), b = in.at(1);
  if (node.i("transA", 0)) a = ops::transpose(a, 0, 1);
  if (node.i("transB", 0)) b = ops::transpose(b, 0, 1);
  const double alpha = node.f("alpha", 1), beta = node.f("beta", 1);
  Tensor y = ops::matmul(a, b);
  if (alpha != 1) y = y * alpha;
  if (const Tensor c = optional(in, 2)) y = ops::add(y, c, beta);
  return {y};
}

// Windows of convolution and pooling.

using Pair = std::array<int64_t, 2>;

/// An image [N, C, L] or [N, C, H, W] in two dimensions, and the window's attributes for it.
struct Windows {
  Pair kernel = {1, 1}, stride = {1, 1}, dilation = {1, 1};
  Pair begin = {0, 0}, end = {0, 0};  // padding
  Pair output = {1, 1};

  /// `kernel` is used when the node does not say it.
  Windows(const Node& node, const Tensor& x, const Shape& weight_kernel = {}) {
    const int dims = x.dim() - 2;
    WEFT_CHECK(dims == 1 || dims == 2, "{}: Weft has one and two spatial dimensions, not {}",
               node.op_type, dims);
    const auto read = [&](Pair& pair, const std::vector<int64_t>& values, size_t first) {
      for (int i = 0; i < dims && !values.empty(); ++i) pair[2 - dims + i] = values.at(first + i);
    };
    read(kernel, {weight_kernel.begin(), weight_kernel.end()}, 0);
    read(kernel, node.ints("kernel_shape"), 0);
    read(stride, node.ints("strides"), 0);
    read(dilation, node.ints("dilations"), 0);
    read(begin, node.ints("pads"), 0);
    read(end, node.ints("pads"), dims);
    const std::string auto_pad = node.s("auto_pad", "NOTSET");
    for (int i = 2 - dims; i < 2; ++i) {
      const int64_t size = x.size(2 + i - (2 - dims)), span = dilation[i] * (kernel[i] - 1) + 1;
      if (auto_pad.starts_with("SAME")) {
        output[i] = (size + stride[i] - 1) / stride[i];
        const int64_t total = std::max<int64_t>(0, (output[i] - 1) * stride[i] + span - size);
        begin[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
        end[i] = total - begin[i];
      } else {
        const int64_t room = size + begin[i] + end[i] - span;
        output[i] = (room + (node.i("ceil_mode", 0) ? stride[i] - 1 : 0)) / stride[i] + 1;
      }
    }
  }

  Shape shape(int64_t batch, int64_t channels) const {
    return {batch, channels, output[0], output[1]};
  }
};

/// [N, C, L] as [N, C, 1, L].
Tensor lift(const Tensor& x) { return x.dim() == 3 ? ops::unsqueeze(x, 2) : x; }
Tensor lower(const Tensor& y, const Tensor& x) { return x.dim() == 3 ? ops::squeeze(y, 2) : y; }

Shape window_of(const Tensor& weight) {
  return Shape(std::vector<int64_t>(weight.shape().begin() + 2, weight.shape().end()));
}

Tensors conv(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), &weight = in.at(1), bias = optional(in, 2);
  const Windows w(node, x, window_of(weight));
  const int64_t groups = node.i("group", 1);
  if (w.begin == w.end) {
    return {lower(
        ops::conv2d(
            lift(x), lift(weight), bias,
            {.stride = w.stride, .padding = w.begin, .dilation = w.dilation, .groups = groups}),
        x)};
  }
  const Tensor y = Tensor::empty(w.shape(x.size(0), weight.size(0)), x.dtype());
  kernels::conv2d({.x = lift(x),
                   .w = lift(weight),
                   .bias = bias,
                   .y = y,
                   .stride = w.stride,
                   .padding = w.begin,
                   .dilation = w.dilation,
                   .groups = groups});
  return {lower(y, x)};
}

/// The data gradient of a convolution, with x for the gradient of its result.
Tensors conv_transpose(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), &weight = in.at(1);
  const int64_t groups = node.i("group", 1);
  const std::vector<int64_t> extra = node.ints("output_padding");
  const std::vector<int64_t> wanted = node.ints("output_shape");
  const std::string auto_pad = node.s("auto_pad", "NOTSET");
  Windows w(node, x, window_of(weight));
  const int dims = x.dim() - 2;
  for (int i = 2 - dims; i < 2; ++i) {
    const int axis = i - (2 - dims);
    const int64_t full = (x.size(2 + axis) - 1) * w.stride[i] + w.dilation[i] * (w.kernel[i] - 1) +
                         1 + (extra.empty() ? 0 : extra[axis]);
    if (wanted.empty() && auto_pad == "NOTSET") {
      w.output[i] = full - w.begin[i] - w.end[i];
    } else {
      w.output[i] = wanted.empty() ? x.size(2 + axis) * w.stride[i] : wanted[axis];
      const int64_t total = std::max<int64_t>(0, full - w.output[i]);
      w.begin[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    }
  }
  const Tensor y = Tensor::empty(w.shape(x.size(0), weight.size(1) * groups), x.dtype());
  kernels::conv2d({.w = lift(weight),
                   .dy = lift(x),
                   .dx = y,
                   .stride = w.stride,
                   .padding = w.begin,
                   .dilation = w.dilation,
                   .groups = groups});
  if (const Tensor bias = optional(in, 2)) {
    return {lower(ops::add(y, ops::reshape(bias, {-1, 1, 1})), x)};
  }
  return {lower(y, x)};
}

Tensor pool(const Node& node, const Windows& w, const Tensor& x, kernels::PoolKind kind,
            const Tensor& indices = {}) {
  // Pooling computes on floats; those hold every u8 exactly.
  const Tensor image = lift(is_floating(x.dtype()) ? x : ops::cast(x, DType::f32));
  const Tensor y = Tensor::empty(w.shape(x.size(0), x.size(1)), image.dtype());
  kernels::pool2d({.kind = kind,
                   .x = image,
                   .y = y,
                   .indices = indices,
                   .kernel = w.kernel,
                   .stride = w.stride,
                   .padding = w.begin,
                   .dilation = w.dilation,
                   .count_include_pad = node.i("count_include_pad", 0) != 0});
  return lower(ops::cast(y, x.dtype()), x);
}

Tensors average_pool(const Node& node, const Tensors& in) {
  return {pool(node, Windows(node, in.at(0)), in[0], kernels::PoolKind::kAverage)};
}

/// The second output is the place of each maximum in the whole of x, rows before columns or, with
/// storage_order 1, columns before rows.
Tensors max_pool(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const Windows w(node, x);
  if (node.outputs.size() < 2) return {pool(node, w, x, kernels::PoolKind::kMax)};
  const Shape shape = w.shape(x.size(0), x.size(1));
  const Tensor places = Tensor::empty(shape, DType::i32);
  const Tensor y = pool(node, w, x, kernels::PoolKind::kMax, places);
  const int64_t height = lift(x).size(2), width = x.size(-1), plane = w.output[0] * w.output[1];
  std::vector<int64_t> flat = to_ints(places);
  for (size_t i = 0; i < flat.size(); ++i) {
    const int64_t row = flat[i] / width, column = flat[i] % width;
    const bool by_column = node.i("storage_order", 0) != 0;
    flat[i] = static_cast<int64_t>(i) / plane * height * width +
              (by_column ? column * height + row : row * width + column);
  }
  return {y, lower(Tensor::from(flat, shape), x)};
}

ops::Pool2dOptions whole_image(const Tensor& x) {
  return {.kernel = {x.size(2), x.size(3)}, .stride = {1, 1}};
}
Tensors global_average_pool(const Node&, const Tensors& in) {
  return {ops::avg_pool2d(in.at(0), whole_image(in[0]))};
}
Tensors global_max_pool(const Node&, const Tensors& in) {
  return {ops::max_pool2d(in.at(0), whole_image(in[0]))};
}

// Normalisation.

/// ONNX's momentum is what remains of the running value, and its variance is the population's,
/// where Weft, as PyTorch, has one minus that, and the sample's: it is taken from ops::var here.
Tensors batch_norm(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const bool training = node.i("training_mode", 0) != 0;
  const double momentum = node.f("momentum", 0.9), eps = node.f("epsilon", 1e-5);
  const Tensor mean = ops::clone(in.at(3)), variance = ops::clone(in.at(4));
  const Tensor y =
      ops::batch_norm(x, in.at(1), in.at(2), mean, variance, training, 1 - momentum, eps);
  if (!training) return {y};
  Shape others;
  for (int i = 0; i < x.dim(); ++i) {
    if (i != 1) others.push_back(i);
  }
  return {y, mean, ops::add(in[4] * momentum, ops::var(x, others, 0), 1 - momentum)};
}

/// Over all dimensions from the axis on, which Weft has as the last one.
Tensors layer_norm(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), bias = optional(in, 2);
  const int axis = wrap_dim(node.i("axis", -1), x.dim(), "LayerNormalization");
  const double eps = node.f("epsilon", 1e-5);
  Shape kept = x.shape();
  int64_t size = 1;
  for (int i = axis; i < x.dim(); ++i) {
    size *= x.size(i);
    kept[i] = 1;
  }
  const Tensor rows = ops::reshape(x, {-1, size}), weight = ops::reshape(in.at(1), {size});
  const Tensor shift = bias ? ops::reshape(bias, {size}) : Tensor();
  const Tensor y = ops::reshape(ops::layer_norm(rows, weight, shift, eps), x.shape());
  if (node.outputs.size() == 1) return {y};
  const Tensor unused = Tensor::empty(rows.shape(), x.dtype());
  const Tensor mean = Tensor::empty({rows.size(0)}), rstd = Tensor::empty({rows.size(0)});
  kernels::layer_norm({.x = rows, .y = unused, .mean = mean, .rstd = rstd, .eps = eps});
  return {y, ops::reshape(mean, kept), ops::reshape(rstd, kept)};
}

/// Each channel of each image by itself: layer norm without weights, then the channel's.
Tensors instance_norm(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const Tensor planes = ops::reshape(x, {x.size(0) * x.size(1), -1});
  const Tensor normal = ops::layer_norm(planes, {}, {}, node.f("epsilon", 1e-5));
  Shape channels = Shape::filled(x.dim() - 1, 1);
  channels[0] = -1;
  const Tensor scale = ops::reshape(in.at(1), channels), shift = ops::reshape(in.at(2), channels);
  return {ops::add(ops::mul(ops::reshape(normal, x.shape()), scale), shift)};
}

Tensors mean_variance_norm(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const Shape axes = node.find("axes") ? Shape(node.ints("axes")) : Shape{0, 2, 3};
  const Tensor deviation = ops::sqrt(ops::var(x, axes, 0, true)) + 1e-9;
  return {ops::div(ops::sub(x, ops::mean(x, axes, true)), deviation)};
}

Tensors softmax(const Node& node, const Tensors& in) {
  return {ops::softmax(in.at(0), node.i("axis", -1))};
}
Tensors log_softmax(const Node& node, const Tensors& in) {
  return {ops::log_softmax(in.at(0), node.i("axis", -1))};
}

/// The second output says which elements were kept.
Tensors dropout(const Node& node, const Tensors& in) {
  const Tensor &x = in.at(0), ratio = optional(in, 1), training = optional(in, 2);
  const double p = ratio ? ratio.item() : node.f("ratio", 0.5);
  const bool is_training = training && training.item() != 0;
  const Tensor y = ops::dropout(x, p, is_training);
  WEFT_CHECK(!is_training || p == 0, "Dropout: Weft draws its own noise");
  return {y, ops::ones(x.shape(), DType::boolean)};
}

// Losses: class dimension 1, labels [N, ...], optional class weights.

/// What the reduction makes of the losses and weights of all labels.
Tensor reduce_loss(const Node& node, const Tensor& losses, const Tensor& weights) {
  const std::string reduction = node.s("reduction", "mean");
  if (reduction == "none") return losses;
  if (reduction == "sum") return ops::sum(losses);
  return ops::div(ops::sum(losses), ops::sum(weights));
}

Tensor negative_log_likelihood(const Node& node, const Tensor& log_p, const Tensor& labels,
                               const Tensor& class_weights) {
  const Attribute* ignore = node.find("ignore_index");
  const Tensor ignored =
      ignore ? ops::eq(labels, constant_like(labels, static_cast<double>(ignore->i)))
             : ops::full(labels.shape(), 0, DType::boolean);
  const Tensor index = ops::where(ignored, constant_like(labels, 0), labels);
  const Tensor picked = ops::squeeze(ops::gather(log_p, 1, ops::unsqueeze(index, 1)), 1);
  Tensor weights = ops::ones(labels.shape(), log_p.dtype());
  if (class_weights) {
    weights = ops::reshape(ops::index_select(class_weights, 0, ops::reshape(index, {-1})),
                           labels.shape());
  }
  weights = ops::where(ignored, constant_like(weights, 0), weights);
  return reduce_loss(node, ops::neg(ops::mul(picked, weights)), weights);
}

Tensors nll_loss(const Node& node, const Tensors& in) {
  return {negative_log_likelihood(node, in.at(0), in.at(1), optional(in, 2))};
}

/// The unweighted mean is Weft's own cross_entropy, on one row per label.
Tensors softmax_cross_entropy(const Node& node, const Tensors& in) {
  const Tensor &logits = in.at(0), &labels = in.at(1), weights = optional(in, 2);
  const Tensor log_p = ops::log_softmax(logits, 1);
  if (weights || node.s("reduction", "mean") != "mean") {
    return {negative_log_likelihood(node, log_p, labels, weights), log_p};
  }
  const Tensor rows =
      ops::transpose(ops::reshape(logits, {logits.size(0), logits.size(1), -1}), 1, 2);
  return {ops::cross_entropy(ops::reshape(rows, {-1, logits.size(1)}), ops::reshape(labels, {-1}),
                             {.ignore_index = node.i("ignore_index", -100)}),
          log_p};
}

// Optimizers. Inputs: learning rate, number of past updates, then the parameters, the gradients
// and each kind of state; outputs: the new parameters and states.

Tensors copies(const Tensors& in, size_t first, size_t count) {
  Tensors tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(ops::clone(in.at(first + i)));
  return tensors;
}

Tensors joined(Tensors a, const Tensors& b, const Tensors& c = {}) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

/// ONNX adds epsilon to sqrt(v) before the bias correction, and corrects nothing at T = 0; both are
/// a matter of the scalars that the kernel is given.
Tensors adam(const Node& node, const Tensors& in) {
  const size_t n = (in.size() - 2) / 4;
  const int64_t past = to_ints(in.at(1))[0], step = std::max<int64_t>(past, 1);
  const double beta1 = node.f("alpha", 0.9), beta2 = node.f("beta", 0.999);
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  const double correction2 = std::sqrt(1 - std::pow(beta2, static_cast<double>(step)));
  WEFT_CHECK(node.f("norm_coefficient_post", 0) == 0, "Adam: Weft decays before the update");
  kernels::AdamProblem p{.parameters = copies(in, 2, n),
                         .gradients = copies(in, 2 + n, n),
                         .m = copies(in, 2 + 2 * n, n),
                         .v = copies(in, 2 + 3 * n, n),
                         .step = step,
                         .lr = in.at(0).item() * (past > 0 ? 1 : correction1 / correction2),
                         .beta1 = beta1,
                         .beta2 = beta2,
                         .eps = node.f("epsilon", 1e-6) / correction2,
                         .weight_decay = node.f("norm_coefficient", 0),
                         .decoupled = false};
  kernels::adam(p);
  return joined(p.parameters, p.m, p.v);
}

Tensors momentum(const Node& node, const Tensors& in) {
  const size_t n = (in.size() - 2) / 3;
  const double beta = to_ints(in.at(1))[0] > 0 ? node.f("beta", 1) : 1;
  kernels::SgdProblem p{.parameters = copies(in, 2, n),
                        .gradients = copies(in, 2 + n, n),
                        .buffers = copies(in, 2 + 2 * n, n),
                        .lr = in.at(0).item(),
                        .momentum = node.f("alpha", 0.9),
                        .dampening = 1 - beta,
                        .weight_decay = node.f("norm_coefficient", 0),
                        .nesterov = node.s("mode", "standard") == "nesterov"};
  kernels::sgd(p);
  return joined(p.parameters, p.buffers);
}

constexpr OpType kOps[] = {
    {"Adam", kRounded, adam},
    {"AveragePool", kSummed, average_pool},
    {"BatchNormalization", kSummed, batch_norm},
    {"Conv", kSummed, conv},
    {"ConvTranspose", kSummed, conv_transpose},
    {"Dropout", kExact, dropout},
    {"Gemm", kSummed, gemm},
    {"GlobalAveragePool", kSummed, global_average_pool},
    {"GlobalMaxPool", kExact, global_max_pool},
    {"InstanceNormalization", kSummed, instance_norm},
    {"LayerNormalization", kSummed, layer_norm},
    {"LogSoftmax", kSummed, log_softmax},
    {"MatMul", kSummed, matmul},
    {"MaxPool", kExact, max_pool},
    {"MeanVarianceNormalization", kSummed, mean_variance_norm},
    {"Momentum", kRounded, momentum},
    {"NegativeLogLikelihoodLoss", kSummed, nll_loss},
    {"Softmax", kSummed, softmax},
    {"SoftmaxCrossEntropyLoss", kSummed, softmax_cross_entropy},
};

}  // namespace

std::span<const OpType> network_ops() { return kOps; }

}  // namespace weft::onnx
