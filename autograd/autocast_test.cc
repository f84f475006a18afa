#include "autograd/autocast.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/testing/declared_ops.h"
#include "core/allocator.h"
#include "kernels/op.h"

namespace weft {
namespace {

using Values = std::vector<double>;

// ATen/autocast_mode.h of PyTorch 2.15: AT_FORALL_LOWER_PRECISION_FP is kLow, AT_FORALL_FP32 and
// AT_FORALL_FP32_SET_OPT_DTYPE are kF32, AT_FORALL_PROMOTE is kPromote. Ops that PyTorch composes
// of several, or fuses differently, are on the list of their parts: cross_entropy is log_softmax
// and nll_loss, attention is scaled_dot_product_attention.
enum class List {
  kLow,
  kF32,
  kF32WrittenNarrow,  // computed in f32, its result rounded to the narrow dtype at once
  kPromote,
  kFollows,     // the dtypes of its inputs, promoted as outside
  kNotNumeric,  // creates tensors, compares, or moves elements of any dtype into a given one
};

/// An op of one or two floating operands.
struct Entry {
  List list;
  std::function<Tensor(const Tensor&, const Tensor&)> run = {};  // not for kNotNumeric
  Shape a = {4, 6}, b = {4, 6};
  bool is_binary = false;
  /// Of a fused op: its parts, the last of which is on the list.
  std::function<Tensor(const Tensor&, const Tensor&)> parts = {};
};

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

Entry unary(List list, std::function<Tensor(const Tensor&)> f, const Shape& shape = {4, 6}) {
  return {list, [f](const Tensor& x, const Tensor&) { return f(x); }, shape};
}
Entry binary(List list, std::function<Tensor(const Tensor&, const Tensor&)> f,
             const Shape& a = {4, 6}, const Shape& b = {4, 6}) {
  return {list, std::move(f), a, b, true};
}

Tensor i64(std::vector<int64_t> values, const Shape& shape) { return Tensor::from(values, shape); }

std::map<std::string, Entry> table() {
  using namespace ops;
  std::map<std::string, Entry> t;
  const List low = List::kLow, f32 = List::kF32, follows = List::kFollows;
  t["matmul"] = binary(low, Binary(matmul), {4, 6}, {6, 3});
  t["linear"] = binary(low, [](auto& x, auto& w) { return linear(x, w); }, {4, 6}, {3, 6});
  t["linear_gelu"] =
      binary(low, [](auto& x, auto& w) { return linear_gelu(x, w); }, {4, 6}, {3, 6});
  t["mlp"] = binary(low, [](auto& x, auto& w) { return mlp(x, w, {}, transpose(w, 0, 1), {}); },
                    {4, 6}, {3, 6});
  t["conv2d"] =
      binary(low, [](auto& x, auto& w) { return conv2d(x, w); }, {1, 2, 5, 5}, {3, 2, 3, 3});
  t["attention"] =
      binary(low, [](auto& q, auto& k) { return attention(q, k, k); }, {1, 2, 3, 4}, {1, 2, 5, 4});
  t["self_attention"] = unary(low, [](auto& x) { return self_attention(x, 2); }, {1, 3, 12});

  t["conv1d"] = binary(low, [](auto& x, auto& w) { return conv1d(x, w); }, {1, 2, 5}, {3, 2, 3});
  t["conv_transpose2d"] = binary(low, [](auto& x, auto& w) { return conv_transpose2d(x, w); },
                                 {1, 2, 3, 3}, {2, 3, 2, 2});
  t["einsum"] = binary(low,
                       [](auto& x, auto& y) {
                         return einsum("ij,jk->ik", {x, y});
                       },
                       {4, 6}, {6, 3});

  for (const auto& [name, f] : std::map<std::string, Unary>{
           {"expm1", expm1}, {"tan", tan}, {"sinh", sinh}, {"cosh", cosh}}) {
    t[name] = unary(f32, f);
  }
  for (const auto& [name, f] :
       std::map<std::string, Unary>{{"log2", log2}, {"log10", log10}, {"log1p", log1p}}) {
    t[name] = unary(f32, [f = f](auto& x) { return f(abs(x)); });
  }
  for (const auto& [name, f] : std::map<std::string, Unary>{{"asin", asin}, {"acos", acos}}) {
    t[name] = unary(f32, [f = f](auto& x) { return f(clamp(x, -1, 1)); });
  }
  t["softplus"] = unary(f32, [](auto& x) { return softplus(x); });
  t["norm"] = unary(f32, [](auto& x) { return norm(x, 2, {1}); });
  t["logsumexp"] = unary(f32, [](auto& x) { return logsumexp(x, {1}); });
  t["cumsum"] = unary(f32, [](auto& x) { return cumsum(x, 1); });
  t["rms_norm"] = unary(f32, [](auto& x) { return rms_norm(x); });
  t["group_norm"] = unary(f32, [](auto& x) { return group_norm(x, 2); }, {2, 4, 3});
  t["nll_loss"] = unary(f32, [](auto& x) { return nll_loss(x, i64({1, 0, 5, 2}, {4})); });
  t["kl_div"] = binary(f32, [](auto& x, auto& y) { return kl_div(x, abs(y)); });
  t["smooth_l1_loss"] = binary(f32, [](auto& x, auto& y) { return smooth_l1_loss(x, y); });
  t["cosine_similarity"] = binary(f32, [](auto& x, auto& y) { return cosine_similarity(x, y); });
  t["exp"] = unary(f32, Unary(exp));
  t["log"] = unary(f32, [](auto& x) { return log(abs(x)); });
  t["pow"] = binary(f32, [](auto& x, auto& y) { return pow(abs(x), y); });
  t["reciprocal"] = unary(f32, Unary(reciprocal));
  t["rsqrt"] = unary(f32, [](auto& x) { return rsqrt(abs(x)); });
  t["sum"] = unary(f32, [](auto& x) { return sum(x, {1}); });
  t["prod"] = unary(f32, [](auto& x) { return prod(x, {1}); });
  t["softmax"] = unary(f32, [](auto& x) { return softmax(x, 1); });
  t["log_softmax"] = unary(f32, [](auto& x) { return log_softmax(x, 1); });
  t["cross_entropy"] = unary(f32, [](auto& x) { return cross_entropy(x, i64({1, 0, 5, 2}, {4})); });
  const List narrow = List::kF32WrittenNarrow;
  t["layer_norm"] = unary(narrow, [](auto& x) { return layer_norm(x, {}, {}); });
  t["add_layer_norm"] =
      binary(narrow, [](auto& x, auto& y) { return add_layer_norm(x, y, {}, {}).second; });

  // The sum follows its inputs, and is rounded as theirs.
  t["add_layer_norm"].parts = [](const Tensor& x, const Tensor& y) {
    return layer_norm(cast(add(x, y), DType::f32), {}, {});
  };

  t["cat"] = binary(List::kPromote, [](auto& x, auto& y) { return cat({x, y}, 0); });
  t["stack"] = binary(List::kPromote, [](auto& x, auto& y) { return stack({x, y}, 0); });
  t["atan2"] = binary(List::kPromote, Binary(atan2));
  t["index_put"] = binary(List::kPromote,
                          [](auto& x, auto& y) {
                            return index_put(x, {i64({1, 1, -1, 0}, {4})}, y, true);
                          },
                          {4, 6}, {4, 6});
  t["scatter_add"] = binary(List::kPromote,
                            [](auto& x, auto& y) {
                              return scatter_add(x, 1, i64({1, 1, 0, 2}, {2, 2}), y);
                            },
                            {2, 4}, {2, 2});

  for (const auto& [name, f] : std::map<std::string, Binary>{{"sub", sub},
                                                             {"mul", mul},
                                                             {"div", div},
                                                             {"maximum", maximum},
                                                             {"minimum", minimum},
                                                             {"remainder", ops::remainder},
                                                             {"floor_divide", floor_divide}}) {
    t[name] = binary(follows, f);
  }
  t["add"] = binary(follows, [](auto& x, auto& y) { return add(x, y); });
  t["where"] = binary(follows, [](auto& x, auto& y) { return where(gt(x, y), x, y); });
  for (const auto& [name, f] :
       std::map<std::string, Unary>{{"neg", neg},         {"abs", abs},
                                    {"square", square},   {"sin", sin},
                                    {"cos", cos},         {"tanh", tanh},
                                    {"sigmoid", sigmoid}, {"erf", erf},
                                    {"relu", relu},       {"silu", silu},
                                    {"exp2", exp2},       {"atan", atan},
                                    {"asinh", asinh},     {"hardswish", hardswish},
                                    {"trunc", trunc},     {"sign", sign},
                                    {"floor", floor},     {"ceil", ceil},
                                    {"round", round},     {"contiguous", contiguous},
                                    {"clone", clone}}) {
    t[name] = unary(follows, f);
  }
  t["acosh"] = unary(follows, [](auto& x) { return acosh(abs(x) + 1.0); });
  t["atanh"] = unary(follows, [](auto& x) { return atanh(sigmoid(x)); });
  t["leaky_relu"] = unary(follows, [](auto& x) { return leaky_relu(x); });
  t["elu"] = unary(follows, [](auto& x) { return elu(x); });
  t["masked_fill"] = unary(follows, [](auto& x) { return masked_fill(x, gt(x, x * 0.0), 2); });
  t["diagonal"] = unary(follows, [](auto& x) { return diagonal(x); });
  t["flip"] = unary(follows, [](auto& x) { return flip(x, {0}); });
  t["roll"] = unary(follows, [](auto& x) { return roll(x, {1}); });
  t["repeat"] = unary(follows, [](auto& x) { return repeat(x, {2, 1}); });
  t["tile"] = unary(follows, [](auto& x) { return tile(x, {2}); });
  t["meshgrid"] = unary(follows, [](auto& x) { return meshgrid({x, x})[0]; }, {4});
  t["tril"] = unary(follows, [](auto& x) { return tril(x); });
  t["triu"] = unary(follows, [](auto& x) { return triu(x); });
  t["pad"] = unary(follows, [](auto& x) { return pad(x, {1, 1}); });
  t["trace"] = unary(follows, Unary(trace), {4, 4});
  t["std"] = unary(follows, [](auto& x) { return std(x, {1}); });
  t["outer"] = binary(follows, Binary(outer), {4}, {6});
  t["instance_norm"] = unary(follows, [](auto& x) { return instance_norm(x); }, {2, 4, 3});
  t["adaptive_avg_pool2d"] =
      unary(follows, [](auto& x) { return adaptive_avg_pool2d(x, 2); }, {1, 2, 4, 4});
  t["interpolate"] =
      unary(f32, [](auto& x) { return interpolate(x, {.size = Size2d(3)}); }, {1, 2, 4, 4});
  t["index"] = unary(follows, [](auto& x) { return index(x, {i64({1, -1}, {2})}); });
  t["sort"] = unary(follows, [](auto& x) { return sort(x).first; });
  t["topk"] = unary(follows, [](auto& x) { return topk(x, 2).first; });
  t["unique"] = unary(follows, [](auto& x) { return unique(x)[0]; });
  t["sqrt"] = unary(follows, [](auto& x) { return sqrt(abs(x)); });
  t["gelu"] = unary(follows, [](auto& x) { return gelu(x); });
  t["clamp"] = unary(follows, [](auto& x) { return clamp(x, -0.5, 0.25); });
  t["mean"] = unary(follows, [](auto& x) { return mean(x, {1}); });
  t["var"] = unary(follows, [](auto& x) { return var(x, {1}); });
  t["max"] = unary(follows, [](auto& x) { return max(x, {1}); });
  t["min"] = unary(follows, [](auto& x) { return min(x, {1}); });
  t["batch_norm"] = unary(follows, [](auto& x) { return batch_norm(x, {}, {}, {}, {}, true); });
  t["max_pool2d"] = unary(follows, [](auto& x) { return max_pool2d(x); }, {1, 2, 4, 4});
  t["max_pool2d_with_indices"] =
      unary(follows, [](auto& x) { return max_pool2d_with_indices(x).first; }, {1, 2, 4, 4});
  t["avg_pool2d"] = unary(follows, [](auto& x) { return avg_pool2d(x); }, {1, 2, 4, 4});
  t["embedding"] = unary(follows, [](auto& x) { return embedding(x, i64({3, 0}, {2})); });
  t["index_select"] = unary(follows, [](auto& x) { return index_select(x, 1, i64({5, 0}, {2})); });
  t["gather"] = unary(follows, [](auto& x) { return gather(x, 1, i64({5, 0, 1, 1}, {4, 1})); });
  t["dropout"] = unary(follows, [](auto& x) {
    manual_seed(3);
    return dropout(x, 0.5);
  });
  t["reshape"] = unary(follows, [](auto& x) { return reshape(x, {24}); });
  t["view"] = unary(follows, [](auto& x) { return view(x, {24}); });
  t["flatten"] = unary(follows, [](auto& x) { return flatten(x); });
  t["transpose"] = unary(follows, [](auto& x) { return transpose(x, 0, 1); });
  t["permute"] = unary(follows, [](auto& x) { return permute(x, {1, 0}); });
  t["expand"] = unary(follows, [](auto& x) { return expand(x, {2, 4, 6}); });
  t["squeeze"] = unary(follows, [](auto& x) { return squeeze(x, 0); }, {1, 6});
  t["unsqueeze"] = unary(follows, [](auto& x) { return unsqueeze(x, 0); });
  t["slice"] = unary(follows, [](auto& x) { return slice(x, 1, 1, 3); });
  t["narrow"] = unary(follows, [](auto& x) { return ops::narrow(x, 1, 1, 2); });
  t["select"] = unary(follows, [](auto& x) { return select(x, 0, 1); });
  t["split"] = unary(follows, [](auto& x) { return split(x, 2, 0)[1]; });
  t["chunk"] = unary(follows, [](auto& x) { return chunk(x, 2, 0)[1]; });
  t["full_like"] = unary(follows, [](auto& x) { return full_like(x, 2); });
  t["zeros_like"] = unary(follows, Unary(zeros_like));
  // Their reduction is internal: it rounds once, to the dtype of its input.
  t["sum_to"] = unary(f32, [](auto& x) { return sum_to(x, {6}); });

  for (const char* name :
       {"linspace", "isinf",  "isfinite",    "any",        "all",         "nonzero", "argsort",
        "full",     "ones",   "arange",      "eye",        "one_hot",     "rand",    "randn",
        "eq",       "ne",     "lt",          "le",         "gt",          "ge",      "is_nan",
        "argmax",   "argmin", "logical_and", "logical_or", "logical_not", "add_",    "mul_",
        "fill_",    "zero_",  "copy_",       "cast",       "to"}) {
    t[name] = {List::kNotNumeric};
  }
  return t;
}

TEST_CASE("every op in ops.h is on a list") {
  const std::set<std::string> declared = declared_ops();
  const auto lists = table();
  for (const std::string& op : declared) {
    INFO(op << " is declared in autograd/ops.h");
    CHECK(lists.count(op) == 1);
  }
  for (const auto& [op, entry] : lists) {
    INFO(op);
    CHECK(declared.count(op) == 1);
  }
}

/// Bit patterns compare as values do, all inputs being finite.
Values run(const Entry& entry, const Tensor& a, const Tensor& b) {
  return entry.run(a, b).to_vector();
}

TEST_CASE("each op computes what its list says") {
  const NoGrad guard;
  for (const auto& [name, entry] : table()) {
    if (entry.list == List::kNotNumeric) continue;
    manual_seed(1);
    const Tensor wide_a = ops::randn(entry.a), wide_b = ops::randn(entry.b);
    for (DType low : {DType::bf16, DType::f16}) {
      for (DType a : {DType::f32, low}) {
        for (DType b : {DType::f32, low}) {
          if (!entry.is_binary && a != b) continue;
          // Weights and the parts of a sum need one dtype.
          const DType promoted = promote(a, b);
          const Tensor x = ops::cast(wide_a, a), y = ops::cast(wide_b, b);
          const auto outside = [&, &entry = entry](DType dtype) {
            return entry.run(ops::cast(x, dtype), ops::cast(y, dtype));
          };
          INFO(name << " of " << weft::name(a) << " and " << weft::name(b) << " in "
                    << weft::name(low));
          Tensor expected;
          DType dtype = promoted;
          switch (entry.list) {
            case List::kLow:
              expected = outside(dtype = low);
              break;
            case List::kF32:
              expected = outside(dtype = DType::f32);
              break;
            case List::kF32WrittenNarrow:
              expected =
                  ops::cast(entry.parts ? entry.parts(x, y) : outside(DType::f32), dtype = low);
              break;
            case List::kPromote:
              expected = outside(promoted);
              break;
            case List::kFollows:
              expected = entry.run(x, y);
              break;
            case List::kNotNumeric:
              break;
          }
          const Autocast mode(low);
          const Tensor result = entry.run(x, y);
          CHECK(result.dtype() == dtype);
          CHECK(result.to_vector() == expected.to_vector());
          {
            const Autocast off(DType::f32);
            if (a == b) CHECK(run(entry, x, y) == outside(a).to_vector());
          }
          // f64 operands are left alone.
          CHECK(entry.run(ops::cast(x, DType::f64), ops::cast(y, DType::f64)).dtype() ==
                DType::f64);
        }
      }
    }
  }
}

TEST_CASE("ops of no list keep their dtypes, and so do targets of in-place ops") {
  const Autocast mode(DType::bf16);
  const Tensor x = Tensor::full({2, 3}, 1.5);
  CHECK(ops::ones({2}).dtype() == DType::f32);
  CHECK(ops::eq(x, x).dtype() == DType::boolean);
  CHECK(ops::argmax(x, 1).dtype() == DType::i64);
  CHECK(ops::sum(ops::cast(x, DType::i64)).dtype() == DType::i64);
  CHECK(ops::cast(x, DType::f16).dtype() == DType::f16);
  Tensor target = Tensor::full({2, 3}, 1, DType::bf16);
  ops::add_(target, x);
  CHECK(target.dtype() == DType::bf16);
}

TEST_CASE("scopes nest, and end as they began") {
  const Tensor x = Tensor::full({2, 2}, 1), w = Tensor::full({2, 2}, 1);
  const auto dtype = [&] { return ops::linear(x, w).dtype(); };
  CHECK(dtype() == DType::f32);
  {
    const Autocast outer(DType::bf16);
    CHECK(dtype() == DType::bf16);
    {
      const Autocast inner(DType::f16);
      CHECK(dtype() == DType::f16);
      const Autocast off(DType::f32);
      CHECK(dtype() == DType::f32);
    }
    CHECK(dtype() == DType::bf16);
    CHECK_THROWS(ops::linear(x, Tensor::full({3, 3}, 1)));
    CHECK(autocast_dtype() == DType::bf16);
  }
  CHECK(dtype() == DType::f32);
  for (DType bad : {DType::f64, DType::i64, DType::f8e4m3, DType::tf32}) {
    CHECK_THROWS_WITH(Autocast(bad), Catch::Contains("expected bf16, f16 or f32, got"));
  }
  CHECK(autocast_dtype() == DType::f32);
}

/// Counts casts of f32 [3, 5] tensors to bf16.
class CountCasts : public kernels::LaunchHook {
 public:
  CountCasts() { kernels::set_launch_hook(this); }
  ~CountCasts() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    count += op == "copy" && problem.find("f32 [3, 5] on cpu to bf16") != std::string::npos;
  }
  void end() noexcept override {}
  int count = 0;
};

TEST_CASE("a weight is cast once for all losses of a scope, and again when it changes") {
  // matmul sees a recorded cast, through which every loss's gradient passes. linear casts its
  // weight itself, on a CPU for as long as a tape holds it.
  for (bool recorded : {false, true}) {
    manual_seed(1);
    Tensor w = ops::randn({3, 5}), b = Tensor::zeros({3});
    w.set_requires_grad(true);
    const auto loss = [&](double scale) {
      return ops::sum(recorded ? ops::matmul(Tensor::full({2, 3}, scale), w)
                               : ops::linear(Tensor::full({2, 5}, scale), w, b));
    };
    INFO("recorded " << recorded);
    CountCasts casts;
    Values gradient;
    {
      const Autocast step(DType::bf16);
      for (double scale : {1.0, 2.0, 4.0}) {
        const Autocast micro_batch(DType::bf16);
        backward(loss(scale));
      }
      CHECK(casts.count == (recorded ? 1 : 3));
      casts.count = 1;
      gradient = w.grad().to_vector();
      CHECK(w.grad().dtype() == DType::f32);
      CHECK(gradient == Values(15, 14));
      {
        const NoGrad guard;
        ops::mul_(w, Tensor::scalar(2));
      }
      const Tensor held = loss(1);
      loss(1);
      CHECK(casts.count == 2);
    }
    const Autocast next(DType::bf16);
    loss(1);
    CHECK(casts.count == 3);
  }
}

TEST_CASE("on a CPU, backward frees a weight's cast in the scope that made it") {
  Tensor w = ops::randn({64, 64}).set_requires_grad(true);
  const auto live = [] { return allocator(Device{}).stats().live; };
  const Autocast mode(DType::bf16);
  const size_t before = live();
  {
    const Tensor loss = ops::sum(ops::linear(Tensor::full({2, 64}, 1), w));
    CHECK(live() >= before + w.nbytes() / 2);
    backward(loss);
  }
  CHECK(live() == before + w.grad().nbytes());
}

TEST_CASE("add_layer_norm writes the gradient of each operand in its dtype, without a cast") {
  manual_seed(4);
  const Tensor weight = ops::randn({3, 5});
  const auto leaf = [](DType dtype) {
    return ops::cast(ops::randn({3, 5}), dtype).set_requires_grad(true);
  };
  for (DType stream : {DType::f32, DType::f16}) {
    Tensor x = leaf(DType::bf16), residual = leaf(stream);
    const auto [sum, y] = ops::add_layer_norm(x, residual, {}, {});
    CHECK(sum.dtype() == DType::f32);
    const CountCasts casts;
    backward(ops::sum(sum * weight) + ops::sum(y * weight));
    CHECK(casts.count == 0);
    CHECK(x.grad().dtype() == DType::bf16);
    CHECK(residual.grad().dtype() == stream);
    if (stream != DType::f32) continue;
    CHECK(x.grad().to_vector() == ops::cast(residual.grad(), DType::bf16).to_vector());
  }
}

TEST_CASE("a cast made while nothing is recorded does not serve a recorded use") {
  Tensor w = Tensor::full({3, 5}, 0.5).set_requires_grad(true);
  const Tensor x = Tensor::full({5, 2}, 1);
  const Autocast mode(DType::f16);
  {
    const NoGrad guard;
    ops::matmul(w, x);
  }
  backward(ops::sum(ops::matmul(w, x)));
  CHECK(w.grad().to_vector() == Values(15, 2));
}

TEST_CASE("slices of a weight are each multiplied as themselves") {
  manual_seed(3);
  const Tensor x = ops::randn({4, 8});
  Tensor w = ops::randn({12, 8}).set_requires_grad(true);
  const auto slices = [&] {
    Values all;
    for (int64_t i = 0; i < 3; ++i) {
      // Its metadata lie where those of the slice before it did.
      const Tensor y = ops::linear(x, ops::narrow(w, 0, 4 * i, 4));
      const Values part = ops::cast(y, DType::f32).to_vector();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  const auto expected = [&] {
    Values all;
    for (int64_t i = 0; i < 3; ++i) {
      const Tensor part = ops::clone(ops::narrow(detach(w), 0, 4 * i, 4));
      const Values y = ops::cast(ops::linear(x, part), DType::f32).to_vector();
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  };
  const Autocast mode(DType::bf16);
  CHECK(slices() == expected());
  const NoGrad guard;
  CHECK(slices() == expected());
}

TEST_CASE("checkpointed layers see the autocast of their first run") {
  manual_seed(2);
  Tensor w = ops::randn({5, 5}).set_requires_grad(true);
  const Tensor x = ops::randn({4, 5});
  const auto gradient = [&](bool checkpointed) {
    w.set_grad({});
    Tensor y;
    {
      const Autocast mode(DType::bf16);
      const auto layer = [&](const Tensors& in) { return ops::tanh(ops::linear(in[0], w)); };
      y = checkpointed ? checkpoint(layer, {x}) : layer({x});
    }
    CHECK(y.dtype() == DType::bf16);
    backward(ops::sum(ops::cast(y, DType::f32)));
    return w.grad().to_vector();
  };
  CHECK(gradient(true) == gradient(false));
}

}  // namespace
}  // namespace weft
