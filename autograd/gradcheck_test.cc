// gradcheck of every function in autograd/ops.h. The header is the list: a function that is neither
// checked here nor named as not differentiable fails the test.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/testing/declared_ops.h"
#include "core/philox.h"

namespace weft {
namespace {

using namespace ops;

/// Normal numbers that keep `gap` away from 0, where relu, abs and others have no derivative.
Tensor input(const Shape& shape, uint64_t stream, double gap = 0.05) {
  Philox random(7, stream);
  std::vector<double> values(numel(shape));
  for (double& v : values) {
    v = random.normal();
    v += v < 0 ? -gap : gap;
  }
  Tensor x = Tensor::from(values, shape);
  x.set_requires_grad(true);
  return x;
}

Tensor positive(const Shape& shape, uint64_t stream) {
  Tensor x = ops::abs(input(shape, stream).alias());
  x.set_requires_grad(true);
  return x;
}

struct Check {
  DifferentiableFunction function;
  Tensors inputs;
  bool second_order = true;
};

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

template <class F>
Check of(F f, Tensor x, bool second_order = true) {
  return {[f](const Tensors& in) { return f(in[0]); }, {x}, second_order};
}
Check of(Binary f, Tensor a, Tensor b) {
  return {[f](const Tensors& in) { return f(in[0], in[1]); }, {a, b}};
}

Tensor labels() { return Tensor::from(std::vector<int64_t>{2, 0, -100, 1}, {4}); }

/// Several checks for each op: shapes, broadcasting, options.
std::map<std::string, std::vector<Check>> checks() {
  std::map<std::string, std::vector<Check>> all;
  const Tensor m = input({3, 4}, 1), n = input({3, 4}, 2), row = input({4}, 3),
               column = input({3, 1}, 4);
  const Tensor cube = input({2, 3, 4}, 5), p = positive({3, 4}, 6), scalar = input({}, 7);
  all["add"] = {{[](const Tensors& in) { return add(in[0], in[1], 0.5); }, {m, row}},
                {[](const Tensors& in) { return add(in[0], in[1]); }, {column, row}},
                {[](const Tensors& in) { return add(in[0], in[0]); }, {m}}};
  for (const auto& [name, f] : {std::pair<std::string, Binary>{"sub", sub},
                                {"mul", mul},
                                {"div", div},
                                {"maximum", maximum},
                                {"minimum", minimum},
                                {"atan2", ops::atan2}}) {
    all[name] = {of(f, m, n), of(f, column, row), of(f, cube, scalar)};
  }
  // The quotients keep away from integers, where the remainder jumps.
  const Tensor divisors = Tensor::from(std::vector<double>{1.7, -0.9, 2.3, 0.6}, {4});
  const Tensor dividends =
      Tensor::from(std::vector<double>{2.1, 2.2, -3.1, 0.8, -4.3, -0.5, 1.2, -2.1}, {2, 4});
  for (Tensor t : {divisors, dividends}) t.set_requires_grad(true);
  all["remainder"] = {of(ops::remainder, dividends, divisors)};
  all["masked_fill"] = {
      of([](const Tensor& x) { return masked_fill(x, gt(x, full({}, 0, DType::f64)), 3) * x; }, m)};
  all["pow"] = {of(ops::pow, p, n), of(ops::pow, p, scalar)};
  const Tensor mask = gt(m, full({}, 0, DType::f64));
  all["where"] = {{[mask](const Tensors& in) { return where(mask, in[0], in[1]); }, {n, row}}};
  for (const auto& [name, f] : {std::pair<std::string, Unary>{"neg", neg},
                                {"abs", ops::abs},
                                {"exp", ops::exp},
                                {"square", square},
                                {"sin", ops::sin},
                                {"cos", ops::cos},
                                {"tanh", ops::tanh},
                                {"sigmoid", sigmoid},
                                {"erf", ops::erf},
                                {"relu", relu},
                                {"silu", silu},
                                {"exp2", ops::exp2},
                                {"expm1", ops::expm1},
                                {"tan", [](const Tensor& x) { return ops::tan(x * 0.4); }},
                                {"atan", ops::atan},
                                {"sinh", ops::sinh},
                                {"cosh", ops::cosh},
                                {"asinh", ops::asinh},
                                {"hardswish", hardswish},
                                {"reciprocal", reciprocal},
                                {"clone", clone}}) {
    all[name] = {of(f, m), of(f, cube)};
  }
  for (const auto& [name, f] : {std::pair<std::string, Unary>{"log", ops::log},
                                {"sqrt", ops::sqrt},
                                {"rsqrt", rsqrt},
                                {"log2", ops::log2},
                                {"log10", ops::log10},
                                {"log1p", ops::log1p},
                                {"acosh", [](const Tensor& x) { return ops::acosh(x + 1.1); }}}) {
    all[name] = {of(f, p)};
  }
  for (const auto& [name, f] : {std::pair<std::string, Unary>{"asin", ops::asin},
                                {"acos", ops::acos},
                                {"atanh", ops::atanh}}) {
    all[name] = {of([f = f](const Tensor& x) { return f(sigmoid(x)); }, m)};
  }
  all["leaky_relu"] = {of([](const Tensor& x) { return leaky_relu(x, 0.2); }, m)};
  all["elu"] = {of([](const Tensor& x) { return elu(x, 0.7); }, cube)};
  all["softplus"] = {of([](const Tensor& x) { return softplus(x); }, m),
                     of([](const Tensor& x) { return softplus(x, 1.5, 0.3); }, cube)};
  all["gelu"] = {of([](const Tensor& x) { return gelu(x); }, m),
                 of([](const Tensor& x) { return gelu(x, Gelu::kTanh); }, m)};
  all["clamp"] = {of([](const Tensor& x) { return clamp(x, -0.7, 0.9); }, m)};
  all["add_"] = {{[](const Tensors& in) {
                    Tensor t = in[0] * 2.0;
                    return add_(t, in[1], 3);
                  },
                  {m, row}}};
  all["mul_"] = {{[](const Tensors& in) {
                    Tensor t = in[0] * 2.0;
                    return mul_(t, in[1]);
                  },
                  {m, row}}};
  all["fill_"] = {{[](const Tensors& in) {
                     Tensor t = in[0] * 2.0;
                     fill_(t, 3);
                     return add(t, in[1]);
                   },
                   {m, n}}};
  all["zero_"] = {{[](const Tensors& in) {
                     Tensor t = in[0] * 2.0;
                     zero_(t);
                     return add(t, in[1]);
                   },
                   {m, n}}};
  all["copy_"] = {{[](const Tensors& in) {
                     Tensor t = in[0] * 2.0;
                     return copy_(t, in[1]);
                   },
                   {m, row}}};
  all["cast"] = {of([](const Tensor& x) { return cast(x, DType::f64); }, m)};
  all["to"] = {of([](const Tensor& x) { return to(square(to(x, {DeviceType::cpu, 1})), {}); }, m)};
  all["contiguous"] = {of([](const Tensor& x) { return contiguous(transpose(x, 0, 1)); }, m)};
  all["reshape"] = {of([](const Tensor& x) { return reshape(transpose(x, 0, 2), {4, 6}); }, cube)};
  all["view"] = {of([](const Tensor& x) { return view(x, {6, -1}); }, cube)};
  all["flatten"] = {of([](const Tensor& x) { return flatten(x, 1); }, cube)};
  all["transpose"] = {of([](const Tensor& x) { return transpose(x, 0, -1); }, cube)};
  all["permute"] = {of([](const Tensor& x) { return permute(x, {2, 0, 1}); }, cube)};
  all["expand"] = {of([](const Tensor& x) { return expand(x, {2, 3, 4}); }, column)};
  all["squeeze"] = {of([](const Tensor& x) { return squeeze(x, 1); }, column)};
  all["unsqueeze"] = {of([](const Tensor& x) { return unsqueeze(x, 1); }, m)};
  all["slice"] = {of([](const Tensor& x) { return slice(x, 2, 1, 4, 2); }, cube)};
  all["narrow"] = {of([](const Tensor& x) { return narrow(x, 1, 1, 2); }, cube)};
  all["select"] = {of([](const Tensor& x) { return select(x, 1, -1); }, cube)};
  all["split"] = {of(
      [](const Tensor& x) {
        const Tensors s = split(x, 2, 1);
        return mul(s[0], sum(s[1]));
      },
      cube)};
  all["chunk"] = {of(
      [](const Tensor& x) {
        const Tensors s = chunk(x, 2, 2);
        return mul(s[0], s[1]);
      },
      cube)};
  all["cat"] = {{[](const Tensors& in) { return cat({in[0], in[1], in[0]}, 1); }, {m, n}}};
  all["stack"] = {{[](const Tensors& in) { return stack({in[0], in[1]}, -1); }, {m, n}}};
  all["diagonal"] = {of([](const Tensor& x) { return diagonal(x, 1, 2, 0); }, cube),
                     of([](const Tensor& x) { return diagonal(x, -1); }, m)};
  all["flip"] = {of([](const Tensor& x) { return flip(x, {0, -1}) * x; }, cube)};
  all["roll"] = {of(
                     [](const Tensor& x) {
                       return roll(x, {5, -1}, {0, 2}) * x;
                     },
                     cube),
                 of([](const Tensor& x) { return roll(x, {-7}) * x; }, m)};
  all["repeat"] = {of([](const Tensor& x) { return repeat(x, {2, 1, 3}); }, m)};
  all["tile"] = {of([](const Tensor& x) { return tile(x, {2}); }, cube)};
  all["meshgrid"] = {{[](const Tensors& in) {
                        const Tensors grids = meshgrid(in, Indexing::kXY);
                        return grids[0] * grids[1];
                      },
                      {row, input({3}, 33)}}};
  all["tril"] = {of([](const Tensor& x) { return tril(x, 1); }, cube)};
  all["triu"] = {of([](const Tensor& x) { return triu(x, -1); }, cube)};
  all["pad"] = {of([](const Tensor& x) { return pad(x, {1, -2, -1, 3}); }, cube)};
  for (Padding padding : {Padding::kReflect, Padding::kReplicate, Padding::kCircular}) {
    all["pad"].push_back(of(
        [=](const Tensor& x) {
          return pad(x, {2, 1, 0, 2}, padding) * 2.0;
        },
        cube));
  }
  for (const auto& [name, f] :
       {std::pair<std::string, Tensor (*)(const Tensor&, const Shape&, bool)>{"sum", sum},
        {"logsumexp", logsumexp},
        {"mean", mean},
        {"prod", prod},
        {"max", ops::max},
        {"min", ops::min}}) {
    all[name] = {of([f = f](const Tensor& x) { return f(x, {}, false); }, m),
                 of([f = f](const Tensor& x) { return f(x, {1}, true); }, cube),
                 of(
                     [f = f](const Tensor& x) {
                       return f(x, {0, -1}, false);
                     },
                     cube)};
  }
  all["var"] = {of([](const Tensor& x) { return var(x, {1}); }, cube),
                of([](const Tensor& x) { return var(x, {}, 0); }, m)};
  all["std"] = {of([](const Tensor& x) { return ops::std(x, {1}); }, cube),
                of(
                    [](const Tensor& x) {
                      return ops::std(x, {0, 2}, 0, true);
                    },
                    cube)};
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (double order : {2.0, 1.0, 3.0, 0.5, kInf, -kInf}) {
    all["norm"].push_back(of([=](const Tensor& x) { return norm(x, order, {-1}); }, cube));
  }
  all["trace"] = {of(trace, m)};
  all["outer"] = {of(outer, row, input({3}, 34))};
  all["cumsum"] = {of([](const Tensor& x) { return cumsum(x, 1) * x; }, cube)};
  all["sort"] = {of([](const Tensor& x) { return sort(x, 1).first * x; }, cube)};
  all["topk"] = {of([](const Tensor& x) { return topk(x, 2, 0, false).first; }, m)};
  all["sum_to"] = {of([](const Tensor& x) { return sum_to(x, {3, 1}); }, cube)};
  const Tensor square_b = input({4, 5}, 8), batch_b = input({2, 4, 3}, 9), vec = input({4}, 10);
  all["matmul"] = {of(matmul, m, square_b), of(matmul, cube, square_b), of(matmul, cube, batch_b),
                   of(matmul, m, vec),      of(matmul, vec, square_b),  of(matmul, vec, row),
                   of(matmul, m, batch_b)};
  for (const char* equation : {"ij,kj->ik", "ij,ij->ij", "ij,ij", "ij,kj->", "ij,kl->jl"}) {
    all["einsum"].push_back(
        {[=](const Tensors& in) { return einsum(equation, in); }, {m, input({3, 4}, 35)}});
  }
  all["einsum"].push_back({[](const Tensors& in) { return einsum("...ij,jk,ii->k...", in); },
                           {cube, square_b, input({3, 3}, 36)}});
  const Tensor weight = input({5, 4}, 11), bias = input({5}, 12);
  all["linear"] = {
      {[](const Tensors& in) { return linear(in[0], in[1], in[2]); }, {cube, weight, bias}},
      of([weight](const Tensor& x) { return linear(x, weight.alias()); }, m)};
  all["linear_gelu"] = {
      {[](const Tensors& in) { return linear_gelu(in[0], in[1], in[2]); }, {cube, weight, bias}}};
  const Tensor weight_2 = input({3, 5}, 16), bias_2 = input({3}, 17);
  all["mlp"] = {
      {[](const Tensors& in) { return mlp(in[0], in[1], in[2], in[3], in[4]); },
       {cube, weight, bias, weight_2, bias_2}},
      {[](const Tensors& in) { return mlp(in[0], in[1], {}, in[2], {}); }, {m, weight, weight_2}}};
  for (const auto& [name, f] :
       {std::pair<std::string, Tensor (*)(const Tensor&, int64_t)>{"softmax", softmax},
        {"log_softmax", log_softmax}}) {
    all[name] = {of([f = f](const Tensor& x) { return f(x, -1); }, m),
                 of([f = f](const Tensor& x) { return f(x, 1); }, cube)};
  }
  const Tensor gamma = input({4}, 13), beta = input({4}, 14), stream = input({2, 3, 4}, 15);
  all["layer_norm"] = {
      {[](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }, {cube, gamma, beta}},
      of([](const Tensor& x) { return layer_norm(x, {}, {}); }, m)};
  all["add_layer_norm"] = {
      {[](const Tensors& in) {
         const auto [s, y] = add_layer_norm(in[0], in[1], in[2], in[3]);
         return add(mul(s, s), y);
       },
       {cube, stream, gamma, beta}},
      {[](const Tensors& in) { return add_layer_norm(in[0], in[1], {}, {}).second; },
       {cube, stream}},
      {[](const Tensors& in) { return add_layer_norm(in[0], in[1], {}, {}).first; },
       {cube, stream}}};
  const Tensor image = input({2, 4, 5, 6}, 16), channels = input({4}, 17), shift = input({4}, 18);
  all["rms_norm"] = {
      of([](const Tensor& x, const Tensor& w) { return rms_norm(x, w); }, cube, gamma)};
  all["group_norm"] = {{[](const Tensors& in) { return group_norm(in[0], 2, in[1], in[2]); },
                        {input({2, 4, 3}, 52), channels, shift}}};
  all["instance_norm"] = {
      {[](const Tensors& in) { return instance_norm(in[0], {}, {}, in[1], in[2]); },
       {input({2, 4, 3}, 53), channels, shift}}};
  all["batch_norm"] = {
      {[](const Tensors& in) { return batch_norm(in[0], in[1], in[2], {}, {}, true); },
       {image, channels, shift},
       false},
      {[v = positive({4}, 19).alias()](const Tensors& in) {
         return batch_norm(in[0], in[1], in[2], v, v, false);
       },
       {image, channels, shift},
       false}};
  const Tensor logits = input({4, 3}, 20), soft = softmax(input({4, 3}, 21).alias(), 1);
  all["cross_entropy"] = {
      of([](const Tensor& x) { return cross_entropy(x, labels()); }, logits, false),
      of([](const Tensor& x) { return cross_entropy(x, labels(), {.label_smoothing = 0.1}); },
         logits, false),
      of([soft](const Tensor& x) { return cross_entropy(x, soft, {.label_smoothing = 0.2}); },
         logits, false)};
  all["nll_loss"] = {of([](const Tensor& x) { return nll_loss(x, labels()); }, logits),
                     of(
                         [w = positive({3}, 38).alias()](const Tensor& x) {
                           return nll_loss(x, Tensor::from(std::vector<int64_t>{2, 0, 1, 1}, {4}),
                                           {.weight = w, .ignore_index = 1});
                         },
                         logits)};
  for (LossReduction reduction : {LossReduction::kMean, LossReduction::kSum, LossReduction::kNone,
                                  LossReduction::kBatchMean}) {
    for (bool log_target : {false, true}) {
      all["kl_div"].push_back(
          {[=](const Tensors& in) { return kl_div(in[0], in[1], reduction, log_target); }, {m, p}});
    }
    if (reduction == LossReduction::kBatchMean) continue;
    for (double beta : {1.0, 0.0, 2.5}) {
      all["smooth_l1_loss"].push_back(
          {[=](const Tensors& in) { return smooth_l1_loss(in[0], in[1], reduction, beta); },
           {m, n}});
    }
  }
  all["cosine_similarity"] = {
      {[](const Tensors& in) { return cosine_similarity(in[0], in[1]); }, {cube, m}},
      {[](const Tensors& in) { return cosine_similarity(in[0], in[1], -1, 4.0); }, {m, n}}};
  const Tensor q = input({2, 2, 3, 4}, 22), k = input({2, 2, 5, 4}, 23),
               v = input({2, 2, 5, 4}, 24);
  for (double rate : {0.0, 0.3}) {
    for (bool causal : {false, true}) {
      all["attention"].push_back({[=](const Tensors& in) {
                                    manual_seed(3);
                                    return attention(in[0], in[1], in[2],
                                                     {.causal = causal, .dropout = rate});
                                  },
                                  {q, k, v}});
      all["self_attention"].push_back({[=](const Tensors& in) {
                                         manual_seed(3);
                                         return self_attention(in[0], 2,
                                                               {.causal = causal, .dropout = rate});
                                       },
                                       {input({2, 3, 24}, 25)},
                                       false});
    }
  }
  const Tensor shown =
      ne(Tensor::from(std::vector<int64_t>{1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0}, {3, 5}),
         full({}, 0, DType::i64));
  all["attention"].push_back(
      {[=](const Tensors& in) { return attention(in[0], in[1], in[2], {.mask = shown}); },
       {input({2, 4, 3, 4}, 49), k, v}});
  // Of a mask that is added, too.
  const Tensor hidden = masked_fill(full({3, 5}, 0, DType::f64), shown, -HUGE_VAL);
  for (double rate : {0.0, 0.3}) {
    all["attention"].push_back(
        {[=](const Tensors& in) {
           manual_seed(3);
           return attention(in[0], in[1], in[2],
                            {.causal = rate > 0, .dropout = rate, .mask = add(in[3], hidden)});
         },
         {input({2, 4, 3, 4}, 49), k, v, input({4, 1, 5}, 52)}});
  }
  all["attention"].push_back(
      {[=](const Tensors& in) { return attention(in[0], in[1], in[2], {.mask = hidden}); },
       {q, k, v}});
  all["self_attention"].push_back(
      {[](const Tensors& in) { return self_attention(in[0], 2, {.mask = in[1]}); },
       {input({2, 3, 24}, 25), input({1, 3}, 53)}});
  const Tensor small = input({1, 2, 6, 4}, 51);
  const Tensor filter = input({6, 2, 3, 2}, 26), conv_bias = input({6}, 27);
  all["conv2d"] = {
      {[](const Tensors& in) {
         return conv2d(in[0], in[1], in[2], {.stride = {2, 1}, .padding = {1, 0}, .groups = 2});
       },
       {input({1, 4, 5, 3}, 50), filter, conv_bias}},
      {[](const Tensors& in) {
         return conv2d(in[0], in[1], {}, {.stride = {2, 2}});
       },
       {input({1, 3, 4, 4}, 28), input({2, 3, 2, 2}, 29)}}};
  all["conv1d"] = {{[](const Tensors& in) {
                      return conv1d(in[0], in[1], in[2],
                                    {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
                    },
                    {input({2, 4, 9}, 39), input({2, 2, 3}, 40), input({2}, 41)}}};
  all["conv_transpose2d"] = {{[](const Tensors& in) {
                                return conv_transpose2d(in[0], in[1], in[2],
                                                        {.stride = {3, 2},
                                                         .padding = {1, 0},
                                                         .output_padding = {2, 1},
                                                         .groups = 2,
                                                         .dilation = {1, 2}});
                              },
                              {input({2, 4, 2, 3}, 42), input({4, 1, 3, 2}, 43), input({2}, 44)}},
                             {[](const Tensors& in) { return conv_transpose2d(in[0], in[1]); },
                              {input({1, 2, 3, 2}, 45), input({2, 3, 2, 2}, 46)}}};
  for (const Size2d& size : {Size2d{1}, Size2d{5, 3}, Size2d{3, 4}, Size2d{7, 9}}) {
    all["adaptive_avg_pool2d"].push_back(
        of([=](const Tensor& x) { return adaptive_avg_pool2d(x, size); }, small));
  }
  for (Interpolation mode : {Interpolation::kNearest, Interpolation::kBilinear}) {
    all["interpolate"].push_back(of(
        [=](const Tensor& x) {
          return interpolate(x, {.size = Size2d{7, 4}, .mode = mode});
        },
        small));
    all["interpolate"].push_back(of(
        [=](const Tensor& x) {
          return interpolate(x, {.scale_factor = std::array{0.5, 2.3}, .mode = mode});
        },
        small));
  }
  all["interpolate"].push_back(of(
      [](const Tensor& x) {
        return interpolate(
            x, {.size = Size2d{3, 9}, .mode = Interpolation::kBilinear, .align_corners = true});
      },
      small));
  all["max_pool2d"] = {of(
      [](const Tensor& x) {
        return max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
      },
      small)};
  all["max_pool2d_with_indices"] = {of(
      [](const Tensor& x) {
        return max_pool2d_with_indices(x, {.dilation = {3, 2}, .ceil_mode = true}).first;
      },
      small)};
  all["avg_pool2d"] = {of(
      [](const Tensor& x) {
        return avg_pool2d(x, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}});
      },
      small)};
  all["avg_pool2d"].push_back(of(
      [](const Tensor& x) {
        return avg_pool2d(squeeze(x, 0), {.kernel = 3, .stride = 2, .ceil_mode = true});
      },
      small));
  const Tensor ids = Tensor::from(std::vector<int64_t>{2, 0, 2, 1, 2, 0}, {2, 3});
  all["embedding"] = {of([ids](const Tensor& w) { return embedding(w, ids); }, m)};
  all["index_select"] = {of(
      [](const Tensor& x) {
        return index_select(x, 1, Tensor::from(std::vector<int64_t>{2, 2, 0}, {3}));
      },
      cube)};
  all["gather"] = {of([ids](const Tensor& x) { return gather(x, 1, ids); }, input({2, 3}, 30))};
  all["scatter_add"] = {{[ids](const Tensors& in) { return scatter_add(in[0], 1, ids, in[1]); },
                         {input({2, 4}, 31), input({2, 3}, 32)}}};
  const Tensor two = Tensor::from(std::vector<int64_t>{1, 0, -1, 1}, {2, 2});
  const Tensor three = Tensor::from(std::vector<int64_t>{2, -3}, {2});
  for (const Tensors& indices : {Tensors{two, three}, Tensors{{}, {}, two}, Tensors{two, {}, three},
                                 Tensors{gt(cube.alias(), full({}, 0, DType::f64))}}) {
    all["index"].push_back(of([=](const Tensor& x) { return index(x, indices); }, cube));
    const Tensor values = input({1}, 47);
    for (bool adds : {false, true}) {
      all["index_put"].push_back(
          {[=](const Tensors& in) { return index_put(in[0], indices, in[1], adds); },
           {cube, values}});
    }
  }
  // Values of the places' own shape; of equal places the last one's count.
  all["index_put"].push_back({[=](const Tensors& in) {
                                return index_put(in[0], {two, {}, three}, in[1], true);
                              },
                              {cube, input({2, 2, 3}, 48)}});
  all["dropout"] = {of(
      [](const Tensor& x) {
        manual_seed(5);
        return dropout(x, 0.4);
      },
      cube)};
  return all;
}

const std::set<std::string> kNotDifferentiable = {
    "linspace", "floor_divide", "trunc",       "isinf",      "isfinite",    "any",        "all",
    "nonzero",  "argsort",      "unique",      "full",       "full_like",   "zeros_like", "ones",
    "arange",   "eye",          "one_hot",     "rand",       "randn",       "eq",         "ne",
    "lt",       "le",           "gt",          "ge",         "sign",        "floor",      "ceil",
    "round",    "is_nan",       "logical_and", "logical_or", "logical_not", "argmax",     "argmin"};

TEST_CASE("every op in ops.h has a gradcheck") {
  const auto table = checks();
  for (const std::string& op : declared_ops()) {
    INFO(op << " is declared in autograd/ops.h");
    CHECK((table.count(op) > 0 || kNotDifferentiable.count(op) > 0));
  }
}

TEST_CASE("gradients agree with central differences") {
  for (const auto& [name, list] : checks()) {
    for (size_t i = 0; i < list.size(); ++i) {
      INFO(name << ", check " << i);
      CHECK_NOTHROW(gradcheck(list[i].function, list[i].inputs));
    }
  }
}

TEST_CASE("gradients of gradients agree with central differences") {
  for (const auto& [name, list] : checks()) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].second_order) continue;
      INFO(name << ", check " << i);
      CHECK_NOTHROW(gradgradcheck(list[i].function, list[i].inputs));
    }
  }
}

TEST_CASE("a product has gradients of gradients at zeros, too") {
  Tensor x = Tensor::from(std::vector<double>{0, 2, 3, 0, 0, -1, 5, 4, 1, 0, 2, 2}, {2, 2, 3});
  x.set_requires_grad(true);
  for (const Shape& dims : {Shape{}, Shape{1}, Shape{0, 2}}) {
    INFO(dims.size() << " dimensions");
    const DifferentiableFunction f = [&](const Tensors& in) { return prod(in[0], dims); };
    CHECK_NOTHROW(gradcheck(f, {x}));
    CHECK_NOTHROW(gradgradcheck(f, {x}));
  }
}

TEST_CASE("an op without gradients of gradients names itself") {
  for (const auto& [name, list] : checks()) {
    if (list[0].second_order) continue;
    INFO(name);
    CHECK_THROWS_WITH(gradgradcheck(list[0].function, list[0].inputs),
                      name + ": gradients of its gradient are not available");
  }
}

TEST_CASE("gradcheck finds a wrong gradient") {
  const DifferentiableFunction wrong = [](const Tensors& in) {
    return record("wrong", in, mul(in[0].alias(), in[0].alias()), {in[0]},
                  [](const Backward& b) -> Tensors { return {mul(b.dy(), b.saved(0)) * 1.9}; });
  };
  CHECK_THROWS_WITH(gradcheck(wrong, {input({3}, 1)}), Catch::Contains("central differences give"));
}

}  // namespace
}  // namespace weft
