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
                                {"minimum", minimum}}) {
    all[name] = {of(f, m, n), of(f, column, row), of(f, cube, scalar)};
  }
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
                                {"reciprocal", reciprocal},
                                {"clone", clone}}) {
    all[name] = {of(f, m), of(f, cube)};
  }
  for (const auto& [name, f] :
       {std::pair<std::string, Unary>{"log", ops::log}, {"sqrt", ops::sqrt}, {"rsqrt", rsqrt}}) {
    all[name] = {of(f, p)};
  }
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
  for (const auto& [name, f] :
       {std::pair<std::string, Tensor (*)(const Tensor&, const Shape&, bool)>{"sum", sum},
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
  all["sum_to"] = {of([](const Tensor& x) { return sum_to(x, {3, 1}); }, cube)};
  const Tensor square_b = input({4, 5}, 8), batch_b = input({2, 4, 3}, 9), vec = input({4}, 10);
  all["matmul"] = {of(matmul, m, square_b), of(matmul, cube, square_b), of(matmul, cube, batch_b),
                   of(matmul, m, vec),      of(matmul, vec, square_b),  of(matmul, vec, row),
                   of(matmul, m, batch_b)};
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
  const Tensor q = input({2, 2, 3, 4}, 22), k = input({2, 2, 5, 4}, 23),
               v = input({2, 2, 5, 4}, 24);
  for (double rate : {0.0, 0.3}) {
    for (bool causal : {false, true}) {
      all["attention"].push_back({[=](const Tensors& in) {
                                    manual_seed(3);
                                    return attention(in[0], in[1], in[2],
                                                     {.causal = causal, .dropout = rate});
                                  },
                                  {q, k, v},
                                  false});
      all["self_attention"].push_back({[=](const Tensors& in) {
                                         manual_seed(3);
                                         return self_attention(in[0], 2,
                                                               {.causal = causal, .dropout = rate});
                                       },
                                       {input({2, 3, 24}, 25)},
                                       false});
    }
  }
  const Tensor filter = input({6, 2, 3, 2}, 26), conv_bias = input({6}, 27);
  all["conv2d"] = {
      {[](const Tensors& in) {
         return conv2d(in[0], in[1], in[2], {.stride = {2, 1}, .padding = {1, 0}, .groups = 2});
       },
       {image, filter, conv_bias},
       false},
      {[](const Tensors& in) {
         return conv2d(in[0], in[1], {}, {.stride = {2, 2}});
       },
       {input({1, 3, 4, 4}, 28), input({2, 3, 2, 2}, 29)},
       false}};
  all["max_pool2d"] = {of(
      [](const Tensor& x) {
        return max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
      },
      image, false)};
  all["avg_pool2d"] = {of(
      [](const Tensor& x) {
        return avg_pool2d(x, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}});
      },
      image, false)};
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
  all["dropout"] = {of(
      [](const Tensor& x) {
        manual_seed(5);
        return dropout(x, 0.4);
      },
      cube)};
  return all;
}

const std::set<std::string> kNotDifferentiable = {
    "full",       "full_like",   "zeros_like", "ones",  "arange", "eye",    "one_hot",
    "rand",       "randn",       "eq",         "ne",    "lt",     "le",     "gt",
    "ge",         "sign",        "floor",      "ceil",  "round",  "is_nan", "logical_and",
    "logical_or", "logical_not", "argmax",     "argmin"};

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
