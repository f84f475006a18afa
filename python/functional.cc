// weft.nn.functional: the operations of layers, with PyTorch's arguments.
#include "autograd/ops.h"
#include "nn/loss.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/docstrings.h"
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

ops::LossReduction loss_reduction_of(std::string_view function, std::string_view name) {
  if (name == "mean") return ops::LossReduction::kMean;
  if (name == "sum") return ops::LossReduction::kSum;
  if (name == "batchmean") return ops::LossReduction::kBatchMean;
  WEFT_CHECK(name == "none", "{}: reduction is mean, sum, batchmean or none, got \"{}\"", function,
             name);
  return ops::LossReduction::kNone;
}

/// An op as a function of these arguments: a MaybeTensor stands for a tensor that may be missing.
template <class... Arguments>
auto taking(auto op) {
  return [op](const Arguments&... arguments) { return op(arguments...); };
}

void bind_losses(nb::module_& m) {
  const auto loss = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&, nn::Reduction),
                        const char* text) {
    define_op(
        m, name,
        [f, name](const Tensor& x, const Tensor& y, const std::string& reduction) {
          return f(x, y, reduction_of(name, reduction));
        },
        "input"_a, "target"_a, "reduction"_a = "mean", Unlocked(), text);
  };
  loss("mse_loss", nn::mse_loss, docs("nn::mse_loss"));
  loss("l1_loss", nn::l1_loss, docs("nn::l1_loss"));
  loss("binary_cross_entropy_with_logits", nn::bce_with_logits, docs("nn::bce_with_logits"));
  define_op(
      m, "nll_loss",
      [](const Tensor& x, const Tensor& labels, const MaybeTensor& weight, int64_t ignore_index,
         const std::string& reduction) {
        return ops::nll_loss(x, labels,
                             {.weight = weight,
                              .ignore_index = ignore_index,
                              .reduction = loss_reduction_of("nll_loss", reduction)});
      },
      "input"_a, "target"_a, "weight"_a = nb::none(), nb::kw_only(), "ignore_index"_a = -100,
      "reduction"_a = "mean", Unlocked());
  define_op(
      m, "kl_div",
      [](const Tensor& x, const Tensor& target, const std::string& reduction, bool log_target) {
        return ops::kl_div(x, target, loss_reduction_of("kl_div", reduction), log_target);
      },
      "input"_a, "target"_a, nb::kw_only(), "reduction"_a = "mean", "log_target"_a = false,
      Unlocked());
  define_op(
      m, "smooth_l1_loss",
      [](const Tensor& x, const Tensor& target, const std::string& reduction, double beta) {
        return ops::smooth_l1_loss(x, target, loss_reduction_of("smooth_l1_loss", reduction), beta);
      },
      "input"_a, "target"_a, nb::kw_only(), "reduction"_a = "mean", "beta"_a = 1.0, Unlocked());
  define_op(m, "cosine_similarity", &ops::cosine_similarity, "x1"_a, "x2"_a, "dim"_a = 1,
            "eps"_a = 1e-8, Unlocked());
  define_op(
      m, "cross_entropy",
      [](const Tensor& logits, const Tensor& labels, const MaybeTensor& weight,
         int64_t ignore_index, const std::string& reduction, double label_smoothing) {
        if (!weight.tensor.defined() && reduction == "mean") {
          return ops::cross_entropy(
              logits, labels, {.label_smoothing = label_smoothing, .ignore_index = ignore_index});
        }
        WEFT_CHECK(label_smoothing == 0 && labels.defined() && !is_floating(labels.dtype()),
                   "cross_entropy: a weight and reductions other than mean go with labels that are "
                   "classes, without smoothing; got labels {} and label_smoothing {}",
                   labels, label_smoothing);
        return ops::nll_loss(ops::log_softmax(logits, logits.dim() > 1 ? 1 : 0), labels,
                             {.weight = weight,
                              .ignore_index = ignore_index,
                              .reduction = loss_reduction_of("cross_entropy", reduction)});
      },
      "input"_a, "target"_a, "weight"_a = nb::none(), nb::kw_only(), "ignore_index"_a = -100,
      "reduction"_a = "mean", "label_smoothing"_a = 0.0, Unlocked());
}

void bind_normalisations(nb::module_& m) {
  define_op(
      m, "layer_norm",
      [](const Tensor& x, const Shape& shape, const MaybeTensor& weight, const MaybeTensor& bias,
         double eps) {
        WEFT_CHECK(shape.size() == 1 && x.dim() > 0 && shape[0] == x.size(-1),
                   "layer_norm: normalized_shape is the last dimension of {}, got {}", x, shape);
        return ops::layer_norm(x, weight, bias, eps);
      },
      "input"_a, "normalized_shape"_a, "weight"_a = nb::none(), "bias"_a = nb::none(),
      "eps"_a = 1e-5, Unlocked());
  define_op(
      m, "rms_norm",
      [](const Tensor& x, const Shape& shape, const MaybeTensor& weight,
         std::optional<double> eps) {
        WEFT_CHECK(shape.size() == 1 && x.dim() > 0 && shape[0] == x.size(-1),
                   "rms_norm: normalized_shape is the last dimension of {}, got {}", x, shape);
        return ops::rms_norm(x, weight, eps);
      },
      "input"_a, "normalized_shape"_a, "weight"_a = nb::none(), "eps"_a = nb::none(), Unlocked());
  define_op(m, "group_norm",
            taking<Tensor, int64_t, MaybeTensor, MaybeTensor, double>(ops::group_norm), "input"_a,
            "num_groups"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
            Unlocked());
  define_op(
      m, "instance_norm",
      taking<Tensor, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor, bool, double, double>(
          ops::instance_norm),
      "input"_a, "running_mean"_a = nb::none(), "running_var"_a = nb::none(),
      "weight"_a = nb::none(), "bias"_a = nb::none(), "use_input_stats"_a = true,
      "momentum"_a = 0.1, "eps"_a = 1e-5, Unlocked());
  define_op(m, "add_layer_norm",
            taking<Tensor, Tensor, MaybeTensor, MaybeTensor, double>(ops::add_layer_norm),
            "input"_a, "residual"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
            Unlocked());
  define_op(
      m, "batch_norm",
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
  define_op(
      m, "conv2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, Size2d stride,
         Size2d padding, Size2d dilation, int64_t groups) {
        return ops::conv2d(
            x, weight, bias,
            {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = Size2d(1), "padding"_a = Size2d(0),
      "dilation"_a = Size2d(1), "groups"_a = 1, Unlocked());
  define_op(
      m, "conv1d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, int64_t stride,
         int64_t padding, int64_t dilation, int64_t groups) {
        return ops::conv1d(
            x, weight, bias,
            {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0,
      "dilation"_a = 1, "groups"_a = 1, Unlocked());
  define_op(
      m, "conv_transpose2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, Size2d stride,
         Size2d padding, Size2d output_padding, int64_t groups, Size2d dilation) {
        return ops::conv_transpose2d(x, weight, bias,
                                     {.stride = stride,
                                      .padding = padding,
                                      .output_padding = output_padding,
                                      .groups = groups,
                                      .dilation = dilation});
      },
      "input"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = Size2d(1), "padding"_a = Size2d(0),
      "output_padding"_a = Size2d(0), "groups"_a = 1, "dilation"_a = Size2d(1), Unlocked());
  define_op(m, "adaptive_avg_pool2d", &ops::adaptive_avg_pool2d, "input"_a, "output_size"_a,
            Unlocked());
  define_op(
      m, "interpolate",
      [](const Tensor& x, std::optional<Size2d> size, nb::object scale, const std::string& mode,
         bool align_corners) {
        WEFT_CHECK(mode == "nearest" || mode == "bilinear",
                   "interpolate: mode is nearest or bilinear, got \"{}\"", mode);
        ops::InterpolateOptions options{.size = size, .align_corners = align_corners};
        options.mode =
            mode == "nearest" ? ops::Interpolation::kNearest : ops::Interpolation::kBilinear;
        if (nb::isinstance<nb::sequence>(scale)) {
          const auto [height, width] = nb::cast<std::pair<double, double>>(scale);
          options.scale_factor = {height, width};
        } else if (!scale.is_none()) {
          options.scale_factor = {nb::cast<double>(scale), nb::cast<double>(scale)};
        }
        const nb::gil_scoped_release unlocked;
        return ops::interpolate(x, options);
      },
      "input"_a, "size"_a = nb::none(), "scale_factor"_a = nb::none(), "mode"_a = "nearest",
      "align_corners"_a = false);
  define_op(
      m, "pad",
      [](const Tensor& x, const std::vector<int64_t>& pad, const std::string& mode, double value) {
        const std::pair<std::string_view, ops::Padding> known[] = {
            {"constant", ops::Padding::kConstant},
            {"reflect", ops::Padding::kReflect},
            {"replicate", ops::Padding::kReplicate},
            {"circular", ops::Padding::kCircular}};
        for (const auto& [name, padding] : known) {
          if (mode == name) return ops::pad(x, pad, padding, value);
        }
        WEFT_FAIL("pad: mode is constant, reflect, replicate or circular, got \"{}\"", mode);
      },
      "input"_a, "pad"_a, "mode"_a = "constant", "value"_a = 0.0, Unlocked());
  define_op(
      m, "avg_pool2d",
      [](const Tensor& x, Size2d kernel, std::optional<Size2d> stride, Size2d padding,
         bool ceil_mode, bool count_include_pad) {
        return ops::avg_pool2d(x, {.kernel = kernel,
                                   .stride = stride.value_or(kernel),
                                   .padding = padding,
                                   .count_include_pad = count_include_pad,
                                   .ceil_mode = ceil_mode});
      },
      "input"_a, "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = Size2d(0),
      "ceil_mode"_a = false, "count_include_pad"_a = true, Unlocked());
  define_op(
      m, "max_pool2d",
      [](const Tensor& x, Size2d kernel, std::optional<Size2d> stride, Size2d padding,
         Size2d dilation, bool ceil_mode, bool return_indices) -> nb::object {
        const ops::Pool2dOptions options{.kernel = kernel,
                                         .stride = stride.value_or(kernel),
                                         .padding = padding,
                                         .dilation = dilation,
                                         .ceil_mode = ceil_mode};
        std::pair<Tensor, Tensor> result;
        {
          const nb::gil_scoped_release unlocked;
          if (return_indices) {
            result = ops::max_pool2d_with_indices(x, options);
          } else {
            result.first = ops::max_pool2d(x, options);
          }
        }
        return return_indices ? nb::cast(result) : nb::cast(result.first);
      },
      "input"_a, "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = Size2d(0),
      "dilation"_a = Size2d(1), "ceil_mode"_a = false, "return_indices"_a = false);
}

}  // namespace

void bind_functional(nb::module_ m) {
  define_op(m, "linear", taking<Tensor, Tensor, MaybeTensor>(ops::linear), "input"_a, "weight"_a,
            "bias"_a = nb::none(), Unlocked());
  define_op(m, "linear_gelu", taking<Tensor, Tensor, MaybeTensor>(ops::linear_gelu), "input"_a,
            "weight"_a, "bias"_a = nb::none(), Unlocked());
  define_op(m, "mlp", taking<Tensor, Tensor, MaybeTensor, Tensor, MaybeTensor>(ops::mlp), "input"_a,
            "weight_1"_a, "bias_1"_a.none(), "weight_2"_a, "bias_2"_a.none(), Unlocked());
  define_op(
      m, "embedding",
      [](const Tensor& indices, const Tensor& weight) { return ops::embedding(weight, indices); },
      "input"_a, "weight"_a, Unlocked());
  define_op(
      m, "one_hot",
      [](const Tensor& indices, int64_t classes) {
        if (classes < 0) classes = static_cast<int64_t>(ops::max(indices).item()) + 1;
        return ops::one_hot(indices, classes, DType::i64);
      },
      "input"_a, "num_classes"_a = -1, Unlocked());
  define_op(m, "leaky_relu", &ops::leaky_relu, "input"_a, "negative_slope"_a = 0.01, Unlocked());
  define_op(m, "elu", &ops::elu, "input"_a, "alpha"_a = 1.0, Unlocked());
  define_op(m, "softplus", &ops::softplus, "input"_a, "beta"_a = 1.0, "threshold"_a = 20.0,
            Unlocked());
  define_op(m, "hardswish", &ops::hardswish, "input"_a, Unlocked());
  define_op(m, "dropout", &ops::dropout, "input"_a, "p"_a = 0.5, "training"_a = true, Unlocked());
  define_op(
      m, "scaled_dot_product_attention",
      [](const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& mask, double dropout,
         bool causal, std::optional<double> scale, bool enable_gqa) {
        WEFT_CHECK(enable_gqa || q.dim() < 3 || k.dim() != q.dim() || q.size(-3) == k.size(-3),
                   "scaled_dot_product_attention: q {} and k {} differ in heads; enable_gqa=True "
                   "lets heads of q share one of k and v",
                   q, k);
        const ops::AttentionOptions options = {
            .causal = causal, .dropout = dropout, .scale = scale, .mask = mask};
        if (q.dim() != 3) return ops::attention(q, k, v, options);
        const auto whole = [](const Tensor& x) { return ops::unsqueeze(x, 0); };
        return ops::squeeze(ops::attention(whole(q), whole(k), whole(v), options), 0);
      },
      "query"_a, "key"_a, "value"_a, "attn_mask"_a = nb::none(), "dropout_p"_a = 0.0,
      "is_causal"_a = false, nb::kw_only(), "scale"_a = nb::none(), "enable_gqa"_a = false,
      Unlocked(), docs("ops::attention"));
  define_op(
      m, "self_attention",
      [](const Tensor& qkv, int64_t heads, double dropout, bool causal) {
        return ops::self_attention(qkv, heads, {.causal = causal, .dropout = dropout});
      },
      "qkv"_a, "num_heads"_a, nb::kw_only(), "dropout_p"_a = 0.0, "is_causal"_a = false,
      Unlocked());
  bind_losses(m);
  bind_normalisations(m);
  bind_images(m);
}

}  // namespace weft::python
