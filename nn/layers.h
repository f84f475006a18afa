// Layers with parameters, and the small ones without. Parameter names, shapes, defaults and initial
// distributions are PyTorch's.
#pragma once

#include <memory>

#include "autograd/ops.h"
#include "nn/module.h"

namespace weft::nn {

using ops::AttentionOptions;
using ops::Conv2dOptions;
using ops::Size2d;

/// x W^T + b: weight [out, in], bias [out].
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias = true);
  Tensor forward(const Tensor& x) override;
  /// gelu of the layer's result, in one pass where nothing stands in for it.
  Tensor forward_gelu(const Tensor& x) {
    return has_stand_in() ? ops::gelu((*this)(x)) : ops::linear_gelu(x, weight, bias);
  }
  Tensor weight, bias;
};

/// Over the last dimension, of size `width`.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t width, double eps = 1e-5);
  Tensor forward(const Tensor& x) override { return ops::layer_norm(x, weight, bias, eps); }
  /// {s, forward(s)} with s = x + residual, in one pass.
  std::pair<Tensor, Tensor> forward_add(const Tensor& x, const Tensor& residual) {
    return ops::add_layer_norm(x, residual, weight, bias, eps);
  }
  Tensor weight, bias;
  double eps;
};

/// Images [N, C, H, W] normalised per channel; running statistics serve evaluation. States of
/// PyTorch before 0.4.1 lack num_batches_tracked, which then is 0.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(int64_t channels, double eps = 1e-5, double momentum = 0.1);
  Tensor forward(const Tensor& x) override;
  Tensor weight, bias;
  Tensor running_mean, running_var;
  Tensor num_batches_tracked;  // i64 []
  double eps, momentum;

 protected:
  void adapt_state(const std::string& prefix, NamedTensors& state) const override;
};

/// weight [out, in / groups, Kh, Kw], bias [out].
class Conv2d : public Module {
 public:
  Conv2d(int64_t in, int64_t out, Size2d kernel, const Conv2dOptions& options = {},
         bool with_bias = true);
  Tensor forward(const Tensor& x) override { return ops::conv2d(x, weight, bias, options); }
  Tensor weight, bias;
  Conv2dOptions options;
};

/// Rows of weight [count, width] at integer indices.
class Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t width);
  Tensor forward(const Tensor& indices) override { return ops::embedding(weight, indices); }
  Tensor weight;
};

/// Zeroes elements with probability p in training and scales the rest by 1/(1-p).
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override { return ops::dropout(x, p, is_training()); }
  double p;
};

/// Stochastic depth: zeroes whole samples x[i] with probability p in training and scales the rest
/// by 1/(1-p). Huang et al., ECCV 2016.
class DropPath : public Module {
 public:
  explicit DropPath(double p);
  Tensor forward(const Tensor& x) override;
  double p;
};

/// x Phi(x), with the normal distribution as it is or by tanh.
class GELU : public Module {
 public:
  explicit GELU(ops::Gelu form = ops::Gelu::kErf) : form(form) {}
  Tensor forward(const Tensor& x) override { return ops::gelu(x, form); }
  ops::Gelu form;
};

/// A function of each element.
template <Tensor (*function)(const Tensor& x)>
class Elementwise : public Module {
 public:
  Tensor forward(const Tensor& x) override { return function(x); }
};
using ReLU = Elementwise<ops::relu>;
using SiLU = Elementwise<ops::silu>;
using Tanh = Elementwise<ops::tanh>;

/// The largest element, or the mean, of each window of x [N, C, H, W].
template <Tensor (*function)(const Tensor& x, const ops::Pool2dOptions& options)>
class Pool2d : public Module {
 public:
  /// Without a stride the windows lie side by side. Of the others ops::Pool2dOptions tells.
  explicit Pool2d(Size2d kernel, std::optional<Size2d> stride = {}, Size2d padding = 0,
                  bool count_include_pad = true, Size2d dilation = 1, bool ceil_mode = false)
      : options{kernel, stride.value_or(kernel), padding, count_include_pad, dilation, ceil_mode} {}
  Tensor forward(const Tensor& x) override { return function(x, options); }
  ops::Pool2dOptions options;
};
using MaxPool2d = Pool2d<ops::max_pool2d>;
using AvgPool2d = Pool2d<ops::avg_pool2d>;

/// The dimensions first to last as one.
class Flatten : public Module {
 public:
  explicit Flatten(int64_t first = 1, int64_t last = -1) : first(first), last(last) {}
  Tensor forward(const Tensor& x) override { return ops::flatten(x, first, last); }
  int64_t first, last;
};

/// x itself.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
};

/// Multi-head self-attention of x [B, T, width]: in_proj_weight [3 width, width] holds the rows of
/// q, k and v one after another. width must be a multiple of heads.
class MultiheadAttention : public Module {
 public:
  MultiheadAttention(int64_t width, int64_t heads, const AttentionOptions& options = {},
                     bool with_bias = true);
  Tensor forward(const Tensor& x) override;
  /// The options of this pass: no dropout in evaluation.
  AttentionOptions current_options() const;
  Tensor in_proj_weight, in_proj_bias;
  Linear& out_proj;
  int64_t heads;
  AttentionOptions options;
};

/// Children applied in order, named "0", "1", ... unless added under another name.
class Sequential : public Module {
 public:
  template <class... Modules>
  explicit Sequential(std::unique_ptr<Modules>... modules) {
    (append(std::move(modules)), ...);
  }
  Tensor forward(const Tensor& x) override;
  /// A segment for each child, and a unit for each that has parameters. Linear layers with nothing
  /// but elementwise functions between them are pairs; the last child, a linear layer, is the head.
  ModelStructure structure() override;

  void append(std::unique_ptr<Module> module) { add_child(next_name(), std::move(module)); }
  template <class T, class... Args>
  T& append(Args&&... arguments) {
    return add<T>(next_name(), std::forward<Args>(arguments)...);
  }
  using Module::add;
  int64_t size() const { return static_cast<int64_t>(children().size()); }
  Module& operator[](int64_t i);

 private:
  std::string next_name() const { return std::to_string(children().size()); }
};

}  // namespace weft::nn
