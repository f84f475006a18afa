#include "nn/layers.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "nn/init.h"
#include "nn/meta.h"
#include "nn/stand_in.h"
#include "nn/structure.h"

namespace weft::nn {
namespace {

/// U(-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's default for weights and biases alike.
Tensor uniform_of_fan_in(const Shape& shape, int64_t fan_in) {
  const double bound = fan_in > 0 ? 1.0 / std::sqrt(static_cast<double>(fan_in)) : 0;
  return init::uniform(blank(shape), -bound, bound);
}

void check_positive(std::string_view layer, std::string_view what, int64_t value) {
  WEFT_CHECK(value > 0, "{}: {} must be positive, got {}", layer, what, value);
}

void check_probability(std::string_view layer, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, "{}: the probability must lie in [0, 1], got {}", layer, p);
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  check_positive("Linear", "in", in);
  check_positive("Linear", "out", out);
  weight = parameter("weight", uniform_of_fan_in({out, in}, in));
  if (with_bias) bias = parameter("bias", uniform_of_fan_in({out}, in));
}

Tensor Linear::forward(const Tensor& x) {
  return is_passed_by(*this) ? unrouted(x) : ops::linear(x, weight, bias);
}

LayerNorm::LayerNorm(int64_t width, double eps)
    : weight(parameter("weight", init::ones(blank({width})))),
      bias(parameter("bias", init::zeros(blank({width})))),
      eps(eps) {}

BatchNorm2d::BatchNorm2d(int64_t channels, double eps, double momentum)
    : weight(parameter("weight", init::ones(blank({channels})))),
      bias(parameter("bias", init::zeros(blank({channels})))),
      running_mean(buffer("running_mean", init::zeros(blank({channels})))),
      running_var(buffer("running_var", init::ones(blank({channels})))),
      num_batches_tracked(buffer("num_batches_tracked", init::zeros(blank({}, DType::i64)))),
      eps(eps),
      momentum(momentum) {}

Tensor BatchNorm2d::forward(const Tensor& x) {
  WEFT_CHECK(x.dim() == 4, "BatchNorm2d: expected images [N, C, H, W], got {}", x);
  if (is_training()) {
    const NoGrad guard;
    ops::add_(num_batches_tracked, ops::full_like(num_batches_tracked, 1));
  }
  return ops::batch_norm(x, weight, bias, running_mean, running_var, is_training(), momentum, eps);
}

void BatchNorm2d::adapt_state(const std::string& prefix, NamedTensors& state) const {
  const auto has = [&](const char* name) {
    return std::ranges::any_of(state,
                               [&](const auto& named) { return named.first == prefix + name; });
  };
  if (!has("running_mean") || has("num_batches_tracked")) return;
  state.emplace_back(prefix + "num_batches_tracked", Tensor::zeros({}, DType::i64));
}

Conv2d::Conv2d(int64_t in, int64_t out, Size2d kernel, const Conv2dOptions& options, bool with_bias)
    : options(options) {
  check_positive("Conv2d", "in", in);
  check_positive("Conv2d", "out", out);
  check_positive("Conv2d", "groups", options.groups);
  check_positive("Conv2d", "the kernel", std::min(kernel[0], kernel[1]));
  WEFT_CHECK(in % options.groups == 0 && out % options.groups == 0,
             "Conv2d: {} groups do not divide {} and {} channels", options.groups, in, out);
  const Shape shape = {out, in / options.groups, kernel[0], kernel[1]};
  const int64_t fan_in = shape[1] * shape[2] * shape[3];
  weight = parameter("weight", uniform_of_fan_in(shape, fan_in));
  if (with_bias) bias = parameter("bias", uniform_of_fan_in({out}, fan_in));
}

Embedding::Embedding(int64_t count, int64_t width)
    : weight(parameter("weight", init::normal(blank({count, width})))) {}

Dropout::Dropout(double p) : p(p) { check_probability("Dropout", p); }
DropPath::DropPath(double p) : p(p) { check_probability("DropPath", p); }

Tensor DropPath::forward(const Tensor& x) {
  if (is_passed_by(*this)) return unrouted(x);
  if (!is_training() || p == 0) return x;
  WEFT_CHECK(x.dim() > 0, "DropPath: expected a batch, got {}", x);
  Shape samples = Shape::filled(x.dim(), 1);
  samples[0] = x.size(0);
  return x * ops::dropout(ops::ones(samples, x.dtype(), x.device()), p);
}

MultiheadAttention::MultiheadAttention(int64_t width, int64_t heads,
                                       const AttentionOptions& options, bool with_bias)
    : out_proj(add<Linear>("out_proj", width, width, with_bias)), heads(heads), options(options) {
  WEFT_CHECK(heads > 0 && width % heads == 0,
             "MultiheadAttention: width {} is not a multiple of {} heads", width, heads);
  check_probability("MultiheadAttention", options.dropout);
  in_proj_weight = parameter("in_proj_weight", init::xavier_uniform(blank({3 * width, width})));
  if (with_bias) {
    in_proj_bias = parameter("in_proj_bias", init::zeros(blank({3 * width})));
    init::zeros(out_proj.bias);
  }
}

Tensor MultiheadAttention::forward(const Tensor& x) {
  if (is_passed_by(*this)) return unrouted(x);
  const Tensor qkv = ops::linear(x, in_proj_weight, in_proj_bias);
  return out_proj(ops::self_attention(qkv, heads, current_options()));
}

AttentionOptions MultiheadAttention::current_options() const {
  AttentionOptions current = options;
  if (!is_training()) current.dropout = 0;
  return current;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& [name, child] : children()) y = (*child)(y);
  return y;
}

namespace {

template <class... Classes>
bool is_one_of(const Module& module) {
  return (... || (dynamic_cast<const Classes*>(&module) != nullptr));
}

}  // namespace

ModelStructure Sequential::structure() {
  ModelStructure structure;
  std::unordered_set<const Module*> units;
  Linear* first = nullptr;  // of a pair that may follow
  for (const auto& [name, child] : children()) {
    structure.segments.push_back(
        {name, [&child = *child](const Tensor& x) { return child(x); }, {name}});
    if (child->num_parameters() > 0) units.insert(child.get());
    auto* const linear = dynamic_cast<Linear*>(child.get());
    structure.head = linear;
    if (linear && first && first->weight.size(0) == linear->weight.size(1)) {
      structure.mlps.emplace_back(first, linear);
      first = nullptr;
    } else if (linear) {
      first = linear;
    } else if (!is_one_of<GELU, ReLU, SiLU, Tanh, Dropout, Identity>(*child)) {
      first = nullptr;
    }
  }
  structure.units = [units](const std::string&, Module& module) { return units.contains(&module); };
  return structure;
}

Module& Sequential::operator[](int64_t i) {
  WEFT_CHECK(i >= 0 && i < size(), "Sequential: no child {} of {}", i, size());
  return *children()[i].second;
}

}  // namespace weft::nn
