// Tensors of more than 2^31 elements go through every op: what their last elements become is, bit
// for bit, what these alone become. Elements are counted in 64 bits everywhere.
//
// Each case says what it takes, in bytes per element: all that lives at its peak, inputs, results,
// temporaries, gradients and lists of indices. The same cases run on 2^24 elements, where that is
// held against what the system counted; on more than 2^31 those run that the memory at hand is
// enough for, and the others are named.
#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/tape.h"
#include "autograd/testing/declared_ops.h"
#include "core/allocator.h"
#include "core/available_memory.h"
#include "core/parallel.h"
#include "core/view.h"
#include "kernels/adam/adam.h"
#include "kernels/fp8_quantize/fp8_quantize.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "kernels/normalize_images/normalize_images.h"
#include "kernels/op.h"
#include "kernels/sgd/sgd.h"
#include "tests/memory_limit.h"

using namespace weft;
using Catch::Contains;

namespace {

constexpr int64_t kLarge = int64_t{1} << 31, kSmall = int64_t{1} << 24;

/// Bytes per element at the peak; backward 0: there is no gradient.
struct Bytes {
  double forward, backward = 0;
};

/// One op on a tensor of more than so many elements.
struct Case {
  std::string op;
  Bytes bytes;
  std::function<void(bool with_gradient)> run;

  double bytes_of(bool with_gradient) const {
    return with_gradient ? bytes.backward : bytes.forward;
  }
};

bool is_same(const Tensor& a, const Tensor& b) {
  const Tensor x = ops::contiguous(a), y = ops::contiguous(b);
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

/// What an op is tried on: a matrix, whose last rows alone are not 0, and these alone.
struct Input {
  DType dtype = DType::bf16;
  int64_t width = 64;
  /// [2, rows, width] instead, in the memory of two rows: the halves repeat one of them each.
  bool is_repeated = false;
};
/// What is compared.
enum class Result { kLastRows, kWhole };

/// An op on rows, before and after which others may be.
using RowOp = std::function<Tensor(const Tensor&)>;

class Rows {
 public:
  Rows(int64_t elements, const Input& input)
      : input_(input), count_(elements / input.width / (input.is_repeated ? 2 : 1) + 1) {}

  int64_t elements() const { return count_ * input_.width * (input_.is_repeated ? 2 : 1); }

  /// Small integers and halves, with signs.
  Tensor alone() const {
    const int64_t rows = input_.is_repeated ? 2 : kLast;
    std::vector<float> values(rows * input_.width);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((static_cast<int64_t>(i) * 37) % 101 - 50) / 2;
    }
    const Tensor x = ops::cast(Tensor::from(values, {rows, input_.width}), input_.dtype);
    return input_.is_repeated ? view::unsqueeze(x, 1) : x;
  }

  Tensor behind_others() const {
    if (input_.is_repeated) return view::expand(alone(), {2, count_, input_.width});
    const Tensor x = Tensor::zeros({count_, input_.width}, input_.dtype);
    Tensor end = last(x);
    ops::copy_(end, alone());
    return x;
  }

  /// The part of a result, or of a gradient, that comes of alone().
  Tensor last(const Tensor& y) const {
    const int64_t rows = input_.is_repeated ? 1 : kLast;
    const int dim = input_.is_repeated ? 1 : 0;
    return view::narrow(y, dim, count_ - rows, rows);
  }

 private:
  static constexpr int64_t kLast = 3;
  const Input input_;
  const int64_t count_;
};

/// A gradient for y, of other numbers in each column, that takes no memory.
Tensor slope_of(const Tensor& y) {
  const int64_t columns = y.dim() > 1 ? y.size(-1) : 1;
  const Tensor row = ops::cast(ops::arange(1, columns + 1), y.dtype());
  return view::expand(y.dim() > 0 ? row : view::squeeze(row), y.shape());
}

struct Results {
  Tensor y, dx;  // dx: undefined unless it was asked for
};

Results results_of(const RowOp& f, Tensor x, bool with_gradient) {
  const GradMode mode(with_gradient);
  x.set_requires_grad(with_gradient);
  const Tensor y = f(x);
  if (with_gradient) backward(y, slope_of(y));
  return {y, x.grad()};
}

/// The cases for tensors of more than so many elements.
class Cases {
 public:
  static std::vector<Case> elementwise(int64_t elements) {
    Cases cases(elements);
    cases.add_elementwise();
    return cases.list_;
  }
  static std::vector<Case> others(int64_t elements) {
    Cases cases(elements);
    cases.add_creation();
    cases.add_moves();
    cases.add_reductions();
    cases.add_products();
    cases.add_norms_and_losses();
    cases.add_images();
    cases.add_lookups();
    cases.add_updates();
    return cases.list_;
  }

 private:
  explicit Cases(int64_t elements) : elements_(elements) {}

  void add(const std::string& op, double bytes, const std::function<void()>& run) {
    list_.push_back({op, {bytes}, [run](bool) { run(); }});
  }

  void add(const std::string& op, const Bytes& bytes, const RowOp& f, const Input& input = {},
           Result compared = Result::kLastRows) {
    const Rows rows(elements_, input);
    list_.push_back({op, bytes, [=](bool with_gradient) {
                       const Results of_all = results_of(f, rows.behind_others(), with_gradient);
                       const Results alone = results_of(f, rows.alone(), with_gradient);
                       const bool is_whole = compared == Result::kWhole;
                       CHECK(is_same(is_whole ? of_all.y : rows.last(of_all.y), alone.y));
                       if (with_gradient) CHECK(is_same(rows.last(of_all.dx), alone.dx));
                     }});
  }

  void add_creation();
  void add_elementwise();
  void add_moves();
  void add_reductions();
  void add_products();
  void add_norms_and_losses();
  void add_images();
  void add_lookups();
  void add_updates();

  const int64_t elements_;
  std::vector<Case> list_;
};

/// Numbers along the last dimension of x, 1, 2, ...
Tensor row_of(const Tensor& x) { return ops::cast(ops::arange(1, x.size(-1) + 1), x.dtype()); }
Tensor scalar_of(const Tensor& x, double value) { return Tensor::scalar(value, x.dtype()); }
Tensor squares_of(const Tensor& x) { return ops::view(x, {x.size(0), 8, 8}); }
/// The first and the last of the last three rows.
Tensor ends_of(const Tensor& x) {
  return Tensor::from(std::vector<int64_t>{x.size(0) - 1, x.size(0) - 3}, {2});
}
/// So many bytes for each row, by its elements.
constexpr double per_row(double bytes) { return bytes / 64; }

void Cases::add_creation() {
  const int64_t n = elements_ + 1;
  const auto last_of = [](const Tensor& x) { return ops::select(x, 0, -1).item(); };
  add("full", 1, [=] { CHECK(last_of(ops::full({n}, 3, DType::u8)) == 3); });
  add("full_like", 1, [=] {
    const Tensor x = view::expand(Tensor::zeros({1}, DType::u8), {n});
    CHECK(last_of(ops::full_like(x, 3)) == 3);
  });
  add("zeros_like", 1, [=] {
    ops::full({n}, 3, DType::u8);  // leaves its memory
    const Tensor x = view::expand(Tensor::zeros({1}, DType::u8), {n});
    CHECK(last_of(ops::zeros_like(x)) == 0);
  });
  add("ones", 1, [=] { CHECK(last_of(ops::ones({n}, DType::u8)) == 1); });
  add("arange", 8, [=] { CHECK(last_of(ops::arange(0, n)) == static_cast<double>(n - 1)); });
  add("linspace", 2, [=] {
    const Tensor x = ops::linspace(0, 1, n, DType::f16);
    CHECK(last_of(x) == 1);
    CHECK(ops::select(x, 0, n / 2).item() == 0.5);
  });
  add("eye", 1, [=] {
    const auto size = static_cast<int64_t>(std::sqrt(static_cast<double>(n))) + 1;
    const Tensor x = ops::eye(size, DType::u8);
    CHECK(ops::select(ops::select(x, 0, size - 1), 0, size - 1).item() == 1);
    CHECK(ops::trace(x).item() == static_cast<double>(size));
  });
  add("trace", 1, [=] {
    const auto size = static_cast<int64_t>(std::sqrt(static_cast<double>(n))) + 1;
    Tensor x = Tensor::zeros({size, size}, DType::u8);
    Tensor end = ops::select(ops::select(x, 0, size - 1), 0, size - 1);
    ops::fill_(end, 77);
    CHECK(ops::trace(x).item() == 77);
  });
  add("one_hot", 1 + per_row(33), [=] {
    const int64_t rows = n / 64 + 1;
    Tensor classes = Tensor::zeros({rows}, DType::i64);
    Tensor end = ops::narrow(classes, 0, rows - 1, 1);
    ops::fill_(end, 63);
    const Tensor x = ops::one_hot(classes, 64, DType::u8);
    CHECK(last_of(ops::select(x, 0, -1)) == 1);
    CHECK(ops::sum(ops::select(x, 1, 63)).item() == 1);
  });
  // Numbers are a function of their place in the generator's stream.
  const auto add_random = [&](const std::string& op, Tensor (*draw)(const Shape&, DType)) {
    add(op, 2, [=] {
      manual_seed(7);
      const Tensor x = draw({n + 3}, DType::bf16);
      manual_seed(7);
      generator().take(n - 1);
      CHECK(is_same(ops::narrow(x, 0, n - 1, 4), draw({4}, DType::bf16)));
    });
  };
  add_random("rand", ops::rand);
  add_random("randn", ops::randn);
  const Rows rows(elements_, {});
  add("dropout", {4, 8}, [=](const Tensor& x) {
    manual_seed(7);
    generator().take(rows.elements() - x.numel());
    return ops::dropout(x, 0.5);
  });
}

void Cases::add_elementwise() {
  using Unary = Tensor (*)(const Tensor&);
  const std::pair<const char*, Unary> kSmooth[] = {
      {"neg", ops::neg},         {"abs", ops::abs},     {"exp", ops::exp},
      {"exp2", ops::exp2},       {"expm1", ops::expm1}, {"log", ops::log},
      {"log2", ops::log2},       {"log10", ops::log10}, {"log1p", ops::log1p},
      {"sqrt", ops::sqrt},       {"rsqrt", ops::rsqrt}, {"reciprocal", ops::reciprocal},
      {"square", ops::square},   {"sin", ops::sin},     {"cos", ops::cos},
      {"tan", ops::tan},         {"asin", ops::asin},   {"acos", ops::acos},
      {"atan", ops::atan},       {"sinh", ops::sinh},   {"cosh", ops::cosh},
      {"tanh", ops::tanh},       {"asinh", ops::asinh}, {"acosh", ops::acosh},
      {"atanh", ops::atanh},     {"erf", ops::erf},     {"relu", ops::relu},
      {"sigmoid", ops::sigmoid}, {"silu", ops::silu},   {"hardswish", ops::hardswish},
  };
  for (const auto& [name, op] : kSmooth) add(name, {4, 6}, op);
  add("leaky_relu", {4, 6}, [](const Tensor& x) { return ops::leaky_relu(x); });
  add("elu", {4, 6}, [](const Tensor& x) { return ops::elu(x); });
  add("softplus", {4, 6}, [](const Tensor& x) { return ops::softplus(x); });
  add("gelu", {4, 6}, [](const Tensor& x) { return ops::gelu(x); });
  add("gelu", {4, 6}, [](const Tensor& x) { return ops::gelu(x, ops::Gelu::kTanh); });
  add("clamp", {4, 6}, [](const Tensor& x) { return ops::clamp(x, -2, 3); });

  const std::pair<const char*, Unary> kSteps[] = {{"sign", ops::sign},
                                                  {"floor", ops::floor},
                                                  {"ceil", ops::ceil},
                                                  {"round", ops::round},
                                                  {"trunc", ops::trunc}};
  for (const auto& [name, op] : kSteps) add(name, {4}, op);
  const std::pair<const char*, Unary> kTests[] = {{"is_nan", ops::is_nan},
                                                  {"isinf", ops::isinf},
                                                  {"isfinite", ops::isfinite},
                                                  {"logical_not", ops::logical_not}};
  for (const auto& [name, op] : kTests) add(name, {3}, op);

  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const auto with_row = [](Binary op) {
    return [op](const Tensor& x) { return op(x, row_of(x)); };
  };
  const Binary plus = [](const Tensor& a, const Tensor& b) { return ops::add(a, b, 2); };
  const std::tuple<const char*, Binary, Bytes> kBinary[] = {
      {"add", plus, {4, 6}},
      {"sub", ops::sub, {4, 6}},
      {"mul", ops::mul, {4, 6}},
      {"div", ops::div, {4, 6}},
      {"remainder", ops::remainder, {4, 6}},
      {"pow", ops::pow, {4, 6}},
      {"atan2", ops::atan2, {4, 6}},
      {"maximum", ops::maximum, {4, 6}},
      {"minimum", ops::minimum, {4, 6}},
      {"floor_divide", ops::floor_divide, {4}},
  };
  for (const auto& [name, op, bytes] : kBinary) add(name, bytes, with_row(op));
  add("add", {4, 6}, [](const Tensor& x) { return ops::add(x, x); });  // both lie side by side
  const std::pair<const char*, Binary> kComparisons[] = {{"eq", ops::eq},
                                                         {"ne", ops::ne},
                                                         {"lt", ops::lt},
                                                         {"le", ops::le},
                                                         {"gt", ops::gt},
                                                         {"ge", ops::ge},
                                                         {"logical_and", ops::logical_and},
                                                         {"logical_or", ops::logical_or}};
  for (const auto& [name, op] : kComparisons) add(name, {3}, with_row(op));

  add("where", {5, 7}, [](const Tensor& x) {
    const Tensor one = scalar_of(x, 1);
    return ops::where(ops::gt(x, one), x, one);
  });
  add("masked_fill", {4, 6},
      [](const Tensor& x) { return ops::masked_fill(x, ops::gt(row_of(x), scalar_of(x, 30)), 7); });

  add("add_", {4, 6}, [](const Tensor& x) {
    Tensor y = ops::clone(x);
    return ops::add_(y, row_of(x), 3);
  });
  add("mul_", {4, 6}, [](const Tensor& x) {
    Tensor y = ops::clone(x);
    return ops::mul_(y, row_of(x));
  });
  add("copy_", {4, 6}, [](const Tensor& x) {
    Tensor y = ops::zeros_like(x);
    return ops::copy_(y, x);
  });
  add("fill_", {2}, [](const Tensor& x) {
    Tensor y = x;
    return ops::fill_(y, 7);
  });
  add("zero_", {2}, [](const Tensor& x) {
    Tensor y = x;
    return ops::zero_(y);
  });
}

void Cases::add_moves() {
  using namespace ops;
  add("cast", {4, 6}, [](const Tensor& x) { return cast(x, DType::f16); });
  add("cast", {2}, [](const Tensor& x) { return cast(x, DType::boolean); }, {.dtype = DType::u8});
  add("to", {4, 6}, [](const Tensor& x) { return to(x, {DeviceType::cpu, 1}); });
  add("clone", {4, 6}, [](const Tensor& x) { return clone(x); });
  // Rows become columns, and columns rows.
  add("contiguous", {4, 6},
      [](const Tensor& x) { return transpose(contiguous(transpose(x, 0, 1)), 0, 1); });
  add("transpose", {2, 4}, [](const Tensor& x) { return transpose(squares_of(x), 1, 2); });
  add("permute", {2, 4}, [](const Tensor& x) { return permute(squares_of(x), {0, 2, 1}); });
  add("reshape", {2, 4}, [](const Tensor& x) { return reshape(x, {x.size(0), 2, 32}); });
  add("view", {2, 4}, [](const Tensor& x) { return ops::view(x, {x.size(0), 2, 32}); });
  add("flatten", {2, 4}, [](const Tensor& x) { return flatten(squares_of(x), 1); });
  add("expand", {2, 4.5}, [](const Tensor& x) {
    return expand(narrow(ops::view(x, {x.size(0), 4, 16}), 1, 3, 1), {x.size(0), 2, 16});
  });
  add("unsqueeze", {2, 4}, [](const Tensor& x) { return unsqueeze(x, 1); });
  add("squeeze", {2, 4}, [](const Tensor& x) { return squeeze(unsqueeze(x, 1), 1); });
  add("slice", {2, 4}, [](const Tensor& x) { return slice(x, 1, 1, 64, 3); });
  add("narrow", {2, 4}, [](const Tensor& x) { return narrow(x, 1, 3, 5); });
  add("select", {2, 4}, [](const Tensor& x) { return select(x, 1, 7); });
  add(
      "select", {2, 4}, [](const Tensor& x) { return select(x, 0, -1); }, {}, Result::kWhole);
  add("diagonal", {2, 4}, [](const Tensor& x) { return diagonal(squares_of(x), 1, 1, 2); });
  add("split", {2, 4}, [](const Tensor& x) { return split(x, 48, 1)[1]; });
  add("chunk", {2, 4}, [](const Tensor& x) { return chunk(x, 4, 1)[3]; });
  add("cat", {4.1, 8.1}, [](const Tensor& x) { return cat({x, narrow(x, 1, 0, 1)}, 1); });
  add("stack", {3, 9}, [](const Tensor& x) {
    return stack({narrow(x, 1, 0, 16), narrow(x, 1, 48, 16)}, 1);
  });
  add("flip", {4, 6}, [](const Tensor& x) { return flip(x, {1}); });
  add("roll", {4, 6}, [](const Tensor& x) { return roll(x, {5}, {1}); });
  // The last rows come first.
  add(
      "roll", {4}, [](const Tensor& x) { return narrow(roll(x, {3 * 64}), 0, 0, 3); }, {},
      Result::kWhole);
  add("repeat", {3, 5.5}, [](const Tensor& x) { return repeat(narrow(x, 1, 0, 16), {1, 2}); });
  add("tile", {3, 5.5}, [](const Tensor& x) { return tile(narrow(x, 1, 0, 16), {2}); });
  add("meshgrid", {2}, [](const Tensor& x) { return meshgrid({select(x, 1, 3), row_of(x)})[0]; });
  add("tril", {4, 6}, [](const Tensor& x) { return tril(squares_of(x)); });
  add("triu", {4, 6}, [](const Tensor& x) { return triu(squares_of(x), 1); });
  add("pad", {4.2, 6.2}, [](const Tensor& x) { return pad(x, {1, 2}); });
  add("pad", {4.2, 10.2}, [](const Tensor& x) { return pad(x, {1, 2}, Padding::kReflect); });
}

void Cases::add_reductions() {
  using namespace ops;
  const double sums = per_row(8);  // partial sums in f64
  add("sum", {2.1 + sums, 4.1 + sums}, [](const Tensor& x) { return sum(x, {1}); });
  add("mean", {2.1 + sums, 4.1 + sums}, [](const Tensor& x) { return mean(x, {1}); });
  add("prod", {2.1 + sums, 5.5}, [](const Tensor& x) { return prod(x, {1}); });
  add("max", {2.1 + sums, 5.3}, [](const Tensor& x) { return ops::max(x, {1}); });
  add("min", {2.1 + sums, 5.3}, [](const Tensor& x) { return ops::min(x, {1}); });
  add("var", {2.1 + 2 * sums, 4.3}, [](const Tensor& x) { return var(x, {1}); });
  add("std", {2.1 + 2 * sums, 4.3}, [](const Tensor& x) { return ops::std(x, {1}); });
  // The squares' sums and their roots are in f64.
  add("norm", {4.1 + per_row(20), 8.1}, [](const Tensor& x) { return norm(x, 2, {1}); },
      {.dtype = DType::f32});
  add("logsumexp", {6.1 + sums, 8.5}, [](const Tensor& x) { return logsumexp(x, {1}); });
  add("any", {1.1}, [](const Tensor& x) { return any(x, {1}); }, {.dtype = DType::u8});
  add("all", {1.1}, [](const Tensor& x) { return all(x, {1}); }, {.dtype = DType::u8});
  add("argmax", {2 + per_row(8)}, [](const Tensor& x) { return argmax(x, 1); });
  add("argmin", {2 + per_row(8)}, [](const Tensor& x) { return argmin(x, 1); });
  add("sum_to", {2.1 + sums, 4.1 + sums}, [](const Tensor& x) {
    return sum_to(x, {x.size(0), 1});
  });
  // Of all elements, most of which are 0.
  add(
      "sum", {2}, [](const Tensor& x) { return sum(x); }, {}, Result::kWhole);
  add(
      "max", {2}, [](const Tensor& x) { return ops::max(x); }, {}, Result::kWhole);
  add(
      "argmax", {1},
      [](const Tensor& x) {
        const Tensor place = argmax(flatten(x), 0);
        return sub(place, Tensor::scalar(static_cast<double>(x.numel()), DType::i64));
      },
      {.dtype = DType::u8}, Result::kWhole);
  add("cumsum", {4, 6}, [](const Tensor& x) { return cumsum(x, 1); });
  add("cumsum", {4, 8}, [](const Tensor& x) {
    return reshape(cumsum(flatten(x), 0), x.shape());  // in one line
  });
  // Of a narrow tensor that takes no memory: the places alone have 8 bytes an element.
  const Input repeated = {.dtype = DType::u8, .is_repeated = true};
  add(
      "sort", {9}, [](const Tensor& x) { return sort(x).first; }, repeated);
  add(
      "argsort", {9}, [](const Tensor& x) { return argsort(x); }, repeated);
  add("topk", {2.4, 4.8}, [](const Tensor& x) { return topk(x, 2).first; });
  add(
      "topk", {1}, [](const Tensor& x) { return topk(flatten(x), 7).first; }, {.dtype = DType::u8},
      Result::kWhole);
  add(
      "unique", {12}, [](const Tensor& x) { return unique(x)[0]; }, {.dtype = DType::u8},
      Result::kWhole);
}

void Cases::add_products() {
  using namespace ops;
  // What a CPU without products of bf16 widens for them depends on the CPU: f32.
  const Input wide = {.dtype = DType::f32};
  const auto weight = [](const Tensor& x, int64_t columns) {
    const Tensor w = remainder(arange(0, 64 * columns, DType::f32), Tensor::scalar(5));
    return cast(reshape(w, {columns, 64}), x.dtype());
  };
  add(
      "matmul", {4.3, 8.6},
      [=](const Tensor& x) { return matmul(x, transpose(weight(x, 4), 0, 1)); }, wide);
  add(
      "linear", {4.3, 8.6}, [=](const Tensor& x) { return linear(x, weight(x, 4)); }, wide);
  add(
      "linear_gelu", {4.6, 9}, [=](const Tensor& x) { return linear_gelu(x, weight(x, 4)); }, wide);
  add(
      "mlp", {5, 9},
      [=](const Tensor& x) {
        const Tensor first = weight(x, 4);
        return mlp(x, first, {}, narrow(transpose(first, 0, 1), 0, 0, 4), {});
      },
      wide);
  add(
      "einsum", {4.3, 8.6},
      [=](const Tensor& x) {
        return einsum("ij,kj->ik", {x, weight(x, 4)});
      },
      wide);
  // A large result of small operands.
  add("outer", {4, 6}, [](const Tensor& x) { return outer(select(x, 1, 3), row_of(x)); });

  // Heads of 64 numbers, of 16 tokens.
  const Input tokens = {.width = 16 * 64};
  add(
      "attention", {4.7, 8},
      [](const Tensor& x) {
        const Tensor q = ops::view(x, {x.size(0), 1, 16, 64});
        const Tensor k = narrow(q, 2, 0, 2);
        return attention(q, detach(k), detach(k));
      },
      tokens);
  add("self_attention", {3.2, 6},
      [](const Tensor& x) {
        return self_attention(ops::view(x, {x.size(0), 16, 3 * 64}), 1);
      },
      {.width = 3 * 16 * 64});
}

void Cases::add_norms_and_losses() {
  using namespace ops;
  add("softmax", {4, 6}, [](const Tensor& x) { return softmax(x, -1); });
  add("log_softmax", {4, 6}, [](const Tensor& x) { return log_softmax(x, -1); });
  add("layer_norm", {4.2, 6.2},
      [](const Tensor& x) { return layer_norm(x, row_of(x), row_of(x)); });
  add("add_layer_norm", {6.2, 8.2}, [](const Tensor& x) {
    return add_layer_norm(x, expand(row_of(x), x.shape()), row_of(x), row_of(x)).second;
  });
  add("rms_norm", {8.3, 16.5}, [](const Tensor& x) { return rms_norm(x, row_of(x)); },
      {.dtype = DType::f32, .is_repeated = true});
  const auto as_channels = [](const Tensor& x) { return ops::view(x, {x.size(0), 4, 16}); };
  add("group_norm", {4.4, 8.6}, [=](const Tensor& x) { return group_norm(as_channels(x), 2); });
  add("instance_norm", {4.8, 6.8}, [=](const Tensor& x) { return instance_norm(as_channels(x)); });
  add("batch_norm", {4, 6}, [=](const Tensor& x) {
    const Tensor one = ones({4}), zero = Tensor::zeros({4});
    return batch_norm(as_channels(x), one, zero, zero, one, false);
  });

  // Labels that do not count stand before the last ones.
  const auto labels_of = [](const Tensor& x) {
    Tensor labels = full({x.size(0)}, -100, DType::i64);
    Tensor end = narrow(labels, 0, x.size(0) - 3, 3);
    copy_(end, Tensor::from(std::vector<int64_t>{5, 63, 0}, {3}));
    return labels;
  };
  add(
      "cross_entropy", {2 + per_row(16), 4.5},
      [=](const Tensor& x) { return cross_entropy(x, labels_of(x)); }, {}, Result::kWhole);
  add(
      "nll_loss", {3.3, 5.4}, [=](const Tensor& x) { return nll_loss(x, labels_of(x)); }, {},
      Result::kWhole);
  add("kl_div", {6, 8}, [](const Tensor& x) { return kl_div(x, row_of(x), LossReduction::kNone); });
  add("smooth_l1_loss", {4, 6},
      [](const Tensor& x) { return smooth_l1_loss(x, row_of(x), LossReduction::kNone); });
  add("cosine_similarity", {8.5, 17},
      [](const Tensor& x) { return cosine_similarity(x, row_of(x), -1); }, {.dtype = DType::f32});
}

void Cases::add_images() {
  using namespace ops;
  const Input images = {.width = 16 * 64 * 64};
  const auto as_images = [](const Tensor& x) { return ops::view(x, {x.size(0), 16, 64, 64}); };
  const auto filter = [](const Shape& shape) { return ones(shape, DType::bf16); };
  add(
      "conv2d", {2.5, 5},
      [=](const Tensor& x) {
        return conv2d(as_images(x), filter({16, 16, 3, 3}), {}, {.stride = 4});
      },
      images);
  add(
      "conv1d", {2.5, 5},
      [=](const Tensor& x) {
        return conv1d(ops::view(x, {x.size(0), 16, 64 * 64}), filter({8, 16, 3}), {},
                      {.stride = 8});
      },
      images);
  add(
      "conv_transpose2d", {3.2, 6.4},
      [=](const Tensor& x) {
        return conv_transpose2d(as_images(x), filter({16, 8, 1, 1}));
      },
      images);
  add(
      "max_pool2d", {2.6, 6}, [=](const Tensor& x) { return max_pool2d(as_images(x)); }, images);
  add(
      "max_pool2d_with_indices", {6, 6},
      [=](const Tensor& x) { return max_pool2d_with_indices(as_images(x)).first; }, images);
  add(
      "avg_pool2d", {2.6, 5}, [=](const Tensor& x) { return avg_pool2d(as_images(x)); }, images);
  // Windows of 32 by 32, which share two rows and columns with the next: their means are exact, in
  // whatever order a product sums them.
  add("adaptive_avg_pool2d", {4.5, 9},
      [=](const Tensor& x) {
        return adaptive_avg_pool2d(ops::view(x, {x.size(0), 8, 94, 94}), {3, 3});
      },
      {.dtype = DType::f32, .width = 8 * 94 * 94});
  add(
      "interpolate", {3.8, 6},
      [=](const Tensor& x) { return interpolate(as_images(x), {.size = 32}); }, images);
  add("interpolate", {8.5, 23.4},
      [=](const Tensor& x) {
        return interpolate(as_images(x), {.size = Size2d(16), .mode = Interpolation::kBilinear});
      },
      {.dtype = DType::f32, .width = images.width});
}

void Cases::add_lookups() {
  using namespace ops;
  const Input long_rows = {.width = 1 << 14};
  const auto places_in = [](const Tensor& x) {
    return expand(ops::view(ends_of(x), {2, 1}), {2, x.size(1)});
  };
  const auto add_read = [&](const std::string& op, const RowOp& f) {
    add(op, {2, 4}, f, long_rows, Result::kWhole);
  };
  add_read("embedding", [](const Tensor& x) { return embedding(x, ends_of(x)); });
  add_read("index_select", [](const Tensor& x) { return index_select(x, 0, ends_of(x)); });
  add_read("gather", [=](const Tensor& x) { return gather(x, 0, places_in(x)); });
  add_read("index", [](const Tensor& x) { return index(x, {ends_of(x)}); });
  const auto add_write = [&](const std::string& op, const RowOp& f) {
    add(op, {4, 6}, f, long_rows);
  };
  add_write("scatter_add", [=](const Tensor& x) {
    return scatter_add(x, 0, places_in(x), expand(row_of(x), {2, x.size(1)}));
  });
  add_write("index_put", [](const Tensor& x) { return index_put(x, {ends_of(x)}, row_of(x)); });
  add_write("index_put",
            [](const Tensor& x) { return index_put(x, {ends_of(x)}, row_of(x), true); });
  // Into one line, which is too long to be widened at once.
  add("index_put", {5, 7}, [](const Tensor& x) {
    const Tensor line = flatten(x);
    const int64_t last = line.numel() - 1;
    const Tensor places =
        Tensor::from(std::vector<int64_t>{last, last - 20, last, last - 9, last}, {5});
    const Tensor added =
        cast(Tensor::from(std::vector<float>{1e-3f, 2, 1e-3f, 3, 7}, {5}), x.dtype());
    return reshape(index_put(line, {places}, added, true), x.shape());
  });
  add(
      "nonzero", {2},
      [](const Tensor& x) {
        return sub(nonzero(x), Tensor::from(std::vector<int64_t>{x.size(0), 0}, {2}));
      },
      {.dtype = DType::u8}, Result::kWhole);
}

/// Kernels that no op of autograd/ops.h calls.
void Cases::add_updates() {
  using namespace kernels;
  add("adam", {8}, [](const Tensor& x) {
    const Tensor m = ops::clone(x), v = ops::square(x);
    adam({.parameters = {x}, .gradients = {ops::clone(x)}, .m = {m}, .v = {v}, .lr = 0.5});
    return x;
  });
  add("sgd", {6}, [](const Tensor& x) {
    const Tensor buffer = ops::clone(x);
    sgd({.parameters = {x},
         .gradients = {ops::clone(x)},
         .buffers = {buffer},
         .lr = 0.5,
         .momentum = 0.5});
    return x;
  });
  add(
      "multi_tensor_norm", {2},
      [](const Tensor& x) {
        const Tensor norm = Tensor::zeros({}, DType::f64);
        multi_tensor_norm({.tensors = {x}, .norm = norm});
        return norm;
      },
      {}, Result::kWhole);
  add("multi_tensor_scale", {2}, [](const Tensor& x) {
    multi_tensor_scale({.tensors = {x}, .factor = 3});
    return x;
  });
  add("fp8_quantize", {3}, [](const Tensor& x) {
    const Tensor y = Tensor::empty(x.shape(), DType::f8e4m3), amax = Tensor::zeros({});
    fp8_quantize({.x = x, .y = y, .amax = amax, .scale = 3});
    CHECK(amax.item() == 25);
    return y;
  });
  add("normalize_images", {3},
      [](const Tensor& x) {
        const Shape shape = {x.size(0), 3, 128, 128};
        const Tensor values = ops::reshape(ops::arange(0, 3 * 256, DType::f32), {3, 256});
        const Tensor y = Tensor::empty(shape, DType::bf16);
        normalize_images({.x = view::reshape(x, shape), .values = values, .y = y});
        return y;
      },
      {.dtype = DType::u8, .width = 3 * 128 * 128});
}

/// The names of the kernels that are launched while it lives.
class Launches : kernels::LaunchHook {
 public:
  Launches() { kernels::set_launch_hook(this); }
  ~Launches() override { kernels::set_launch_hook(nullptr); }
  std::set<std::string> ops() const { return ops_; }

 private:
  void begin(std::string_view op, std::string_view, Device, const std::string&) override {
    const std::lock_guard lock(mutex_);
    ops_.emplace(op);
  }
  void end() noexcept override {}

  std::mutex mutex_;
  std::set<std::string> ops_;
};

/// Memory that nobody uses goes back to the system.
void tidy_up() {
  for (int index : {0, 1}) allocator({DeviceType::cpu, index}).release_pool();
  ::malloc_trim(0);
}

/// Whether there is enough memory for it.
bool run_large(const Case& one, bool with_gradient) {
  constexpr double kOfThreads = 0.5e9;
  const double wanted = one.bytes_of(with_gradient) * static_cast<double>(kLarge) + kOfThreads;
  const std::string name = one.op + (with_gradient ? ", backward" : "");
  tidy_up();
  if (static_cast<double>(available_memory()) < wanted) {
    fmt::print("SKIPPED: {} of more than 2^31 elements: needs {:.1f} GB\n", name, wanted / 1e9);
    return false;
  }
  INFO(name);
  CHECK_NOTHROW(one.run(with_gradient));
  return true;
}

void run_large(const std::vector<Case>& cases) {
  size_t tried = 0;
  // A gradient comes with the result.
  for (const Case& one : cases) {
    tried += (one.bytes.backward > 0 && run_large(one, true)) || run_large(one, false);
  }
  fmt::print("{} of {} cases were tried\n", tried, cases.size());
}

}  // namespace

TEST_CASE("every op has a case, which takes the memory that it says") {
  const Launches launches;
  const int threads = num_threads();
  set_num_threads(2);  // each has buffers of its own
  std::set<std::string> tried;
  const auto run = [&](const Case& one, bool with_gradient) {
    INFO(one.op << (with_gradient ? ", backward" : ""));
    CHECK_NOTHROW(one.run(with_gradient));  // once for what is made at the first use
    tidy_up();
    if (!tests::reset_peak()) return;
    const int64_t before = tests::status("VmRSS");
    one.run(with_gradient);
    const auto taken = static_cast<double>(tests::status("VmHWM") - before);
    constexpr double kOfThreads = 16 << 20;
    CHECK(std::abs(taken - one.bytes_of(with_gradient) * kSmall) <= kOfThreads);
  };
  for (const auto& list : {Cases::elementwise(kSmall), Cases::others(kSmall)}) {
    for (const Case& one : list) {
      tried.insert(one.op);
      run(one, false);
      if (one.bytes.backward > 0) run(one, true);
    }
  }
  set_num_threads(threads);
  for (const std::string& op : declared_ops()) {
    INFO(op << " is declared in autograd/ops.h");
    CHECK(tried.contains(op));
  }
  const std::map<std::string, const char*> not_large = {{"loss_scale", "it works on four numbers"}};
  const std::set<std::string> launched = launches.ops();
#define WEFT_OP(op)                                           \
  {                                                           \
    INFO(#op << " is a folder of kernels/");                  \
    CHECK(launched.contains(#op) != not_large.contains(#op)); \
  }
#include "kernels/ops.inc"
#undef WEFT_OP
}

TEST_CASE("what cannot be counted is refused with a reason") {
  const NoGrad guard;
  // One element in all places.
  const int64_t height = 1 << 16, width = (1 << 15) + 1;
  const Tensor image = view::expand(Tensor::zeros({1, 1, 1, 1}), {1, 1, height, width});
  const ops::Size2d all = {height, width};
  CHECK_THROWS_WITH(ops::max_pool2d_with_indices(image, {.kernel = all, .stride = all}),
                    Contains("expected planes of fewer than 2^31 pixels"));
  const Tensor line = view::expand(Tensor::zeros({1}, DType::u8), {int64_t{1} << 32});
  CHECK_THROWS_WITH(ops::topk(line, 1), Contains("expected fewer than 2^32"));
}

TEST_CASE("elementwise ops of more than 2^31 elements", "[large][elementwise]") {
  run_large(Cases::elementwise(kLarge));
}

TEST_CASE("other ops of more than 2^31 elements", "[large][others]") {
  run_large(Cases::others(kLarge));
}
