// weft.nn.functional: the operations of layers, with PyTorch's arguments.
#include "autograd/ops.h"
#include "nn/loss.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"

namespace weft::python {
namespace {

using ops::Size2d;

nn::Reduction reduction_of(std::string_view function, std::string_view name) {
  if (name == "mean") return nn::Reduction::kMean;
  if (name == "sum") return nn::Reduction::kSum;
  WEFT_CHECK(name == "none", "{}: reduction is mean, sum or none, got \"{}\"", function, name);
  return nn::Reduction::kNone;
}

void bind_losses(nb::module_& m) {
  const auto loss = [&](const char* name,
                        Tensor (*f)(const Tensor&, const Tensor&, nn::Reduction)) {
    m.def(
        name,
        [f, name](const Tensor& x, const Tensor& y, const std::string& reduction) {
          return f(x, y, reduction_of(name, reduction));
        },
        "input"_a, "target"_a, "reduction"_a = "mean", Unlocked());
  };
  loss("mse_loss", nn::mse_loss);
  loss("l1_loss", nn::l1_loss);
  loss("binary_cross_entropy_with_logits", nn::bce_with_logits);
  m.def(
      "cross_entropy",
      [](const Tensor& logits, const Tensor& labels, int64_t ignore_index, double label_smoothing) {
        return ops::cross_entropy(
            logits, labels, {.label_smoothing = label_smoothing, .ignore_index = ignore_index});
      },
      "input"_a, "target"_a, nb::kw_only(), "ignore_index"_a = -100, "label_smoothing"_a = 0.0,
      Unlocked(),
      "The mean over rows of logits [N, C] against classes int64 [N] or probabilities [N, C].");
}

void bind_normalisations(nb::module_& m) {
  m.def(
      "layer_norm",
      [](const Tensor& x, const Shape& shape, const MaybeTensor& weight, const MaybeTensor& bias,
         double eps) {
        WEFT_CHECK(shape.size() == 1 && x.dim() > 0 && shape[0] == x.size(-1),
                   "layer_norm: normalized_shape is the last dimension of {}, got {}", x, shape);
        return ops::layer_norm(x, weight, bias, eps);
      },
      "input"_a, "normalized_shape"_a, "weight"_a = nb::none(), "bias"_a = nb::none(),
      "eps"_a = 1e-5, Unlocked());
  m.def(
      "add_layer_norm",
      [](const Tensor& x, const Tensor& residual, const MaybeTensor& weight,
         const MaybeTensor& bias,
         double eps) { return ops::add_layer_norm(x, residual, weight, bias, eps); },
      "input"_a, "residual"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
      Unlocked(), "(s, layer_norm(s)) with s = input + residual, in one pass.");
  m.def(
      "batch_norm",
      [](const Tensor& x, const MaybeTensor& mean, const MaybeTensor& var,
         const MaybeTensor& weight, const MaybeTensor& bias, bool training, double momentum,
         double eps) {
        for (const Tensor& running : {mean.tensor, var.tensor}) {
          if (training && running.defined()) check_writable("batch_norm", running);
        }
        return ops::batch_norm(x, weight, bias, mean, var, training, momentum, eps);
      },
      "input"_a, "running_mean"_a.none(), "running_var"_a.none(), "weight"_a = nb::none(),
      "bias"_a = nb::none(), "training"_a = false, "momentum"_a = 0.1, "eps"_a = 1e-5, Unlocked());
}

void bind_images(nb::module_& m) {
  m.def(
      "conv2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, Size2d stride,
         Size2d padding, Size2d dilation, int64_t groups) {
        return ops::conv2d(
            x, weight, bias,
            {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = Size2d(1), "padding"_a = Size2d(0),
      "dilation"_a = Size2d(1), "groups"_a = 1, Unlocked());
  const auto pool = [&](const char* name, auto f) {
    m.def(
        name,
        [f](const Tensor& x, Size2d kernel, std::optional<Size2d> stride, Size2d padding,
            bool count_include_pad) {
          return f(x,
                   ops::Pool2dOptions{kernel, stride.value_or(kernel), padding, count_include_pad});
        },
        "input"_a, "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = Size2d(0), nb::kw_only(),
        "count_include_pad"_a = true, Unlocked());
  };
  pool("max_pool2d", ops::max_pool2d);
  pool("avg_pool2d", ops::avg_pool2d);
}

}  // namespace

void bind_functional(nb::module_ m) {
  m.def(
      "linear",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
        return ops::linear(x, weight, bias);
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), Unlocked(),
      "x W^T + b: x [..., in], W [out, in], b [out].");
  m.def(
      "linear_gelu",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
        return ops::linear_gelu(x, weight, bias);
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), Unlocked(),
      "gelu(linear(...)) in one pass over the result.");
  m.def(
      "mlp",
      [](const Tensor& x, const Tensor& weight_1, const MaybeTensor& bias_1, const Tensor& weight_2,
         const MaybeTensor& bias_2) { return ops::mlp(x, weight_1, bias_1, weight_2, bias_2); },
      "input"_a, "weight_1"_a, "bias_1"_a.none(), "weight_2"_a, "bias_2"_a.none(), Unlocked(),
      "linear(linear_gelu(x, weight_1, bias_1), weight_2, bias_2), with one gradient.");
  m.def(
      "embedding",
      [](const Tensor& indices, const Tensor& weight) { return ops::embedding(weight, indices); },
      "input"_a, "weight"_a, Unlocked(), "Rows of weight [V, D].");
  m.def(
      "one_hot",
      [](const Tensor& indices, int64_t classes) {
        if (classes < 0) classes = static_cast<int64_t>(ops::max(indices).item()) + 1;
        return ops::one_hot(indices, classes, DType::i64);
      },
      "input"_a, "num_classes"_a = -1, Unlocked());
  m.def("dropout", &ops::dropout, "input"_a, "p"_a = 0.5, "training"_a = true, Unlocked());
  m.def(
      "scaled_dot_product_attention",
      [](const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
         std::optional<double> scale) {
        return ops::attention(q, k, v, {.causal = causal, .dropout = dropout, .scale = scale});
      },
      "query"_a, "key"_a, "value"_a, nb::kw_only(), "dropout_p"_a = 0.0, "is_causal"_a = false,
      "scale"_a = nb::none(), Unlocked(),
      "softmax(scale Q K^T) V of q, k, v [B, H, T, D]; scale is 1/sqrt(D) unless it is given.");
  m.def(
      "self_attention",
      [](const Tensor& qkv, int64_t heads, double dropout, bool causal) {
        return ops::self_attention(qkv, heads, {.causal = causal, .dropout = dropout});
      },
      "qkv"_a, "num_heads"_a, nb::kw_only(), "dropout_p"_a = 0.0, "is_causal"_a = false, Unlocked(),
      "Attention on the fused projection [B, T, 3 * heads * D] of one input: [B, T, heads * D].");
  bind_losses(m);
  bind_normalisations(m);
  bind_images(m);
}

}  // namespace weft::python
