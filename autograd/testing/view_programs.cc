#include "autograd/testing/view_programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/philox.h"

namespace weft::view_programs {
namespace {

bool is_view(Kind kind) { return kind <= Kind::kDetach; }
bool is_in_place(Kind kind) { return kind >= Kind::kAddInPlace; }

// ---- The slow interpreter ----

constexpr int kMaxDerivatives = 16;
using Derivatives = std::array<double, kMaxDerivatives>;

/// A number and its derivatives by the elements of the inputs.
struct Number {
  double value = 0;
  Derivatives d{};
};

bool is_constant(const std::vector<Number>& numbers) {
  for (const Number& number : numbers) {
    for (double d : number.d) {
      if (d != 0) return false;
    }
  }
  return true;
}

/// Derivatives as one owner of some memory sees them: a tensor that is no view, with its views.
/// detach() and a view taken under NoGrad see the same values and have derivatives of their own.
struct History {
  std::vector<Derivatives> d;
  bool is_leaf = false;
  bool takes_no_derivatives = false;  // of a view taken under NoGrad
};

struct Variable {
  std::shared_ptr<std::vector<double>> memory;
  std::shared_ptr<History> history;
  Shape shape;
  std::vector<int> places;  // in memory, of the elements in row-major order

  int64_t size() const { return static_cast<int64_t>(places.size()); }
  bool is_consecutive() const {
    for (size_t i = 1; i < places.size(); ++i) {
      if (places[i] != places[i - 1] + 1) return false;
    }
    return true;
  }
  bool repeats_places() const {
    return std::set<int>(places.begin(), places.end()).size() < places.size();
  }
  std::vector<Number> read() const {
    std::vector<Number> numbers;
    for (int place : places) numbers.push_back({(*memory)[place], history->d[place]});
    return numbers;
  }
};

/// The position in a row-major array of shape `from` of element `index` of the wider shape `to`.
int64_t broadcast_position(const Shape& from, const Shape& to, int64_t index) {
  int64_t position = 0, step = 1;
  for (int i = 1; i <= to.size(); ++i) {
    const int64_t size = to[to.size() - i], at = index % size;
    index /= size;
    if (i > from.size()) continue;
    const int64_t own = from[from.size() - i];
    if (own != 1) position += at * step;
    step *= own;
  }
  return position;
}

class Interpreter {
 public:
  explicit Interpreter(const std::vector<Input>& inputs) {
    int derivative = 0;
    for (const Input& input : inputs) {
      std::vector<Number> numbers;
      for (double value : input.values) {
        numbers.push_back({value, {}});
        if (input.requires_grad) numbers.back().d[derivative++] = 1;
      }
      define(numbers, input.shape);
      variables_.back().history->is_leaf = input.requires_grad;
    }
    derivatives_ = derivative;
  }

  const std::vector<Variable>& variables() const { return variables_; }

  /// Why the instruction must not be carried out; empty where it may.
  std::string refusal_of(const Instruction& in) const {
    if (!is_in_place(in.kind)) return {};
    const Variable& a = variables_[in.a];
    if (in.kind != Kind::kFillInPlace && a.repeats_places()) return "the target repeats elements";
    if (!in.is_recorded) return {};
    if (a.history->is_leaf) return "the target is or shows a leaf";
    if (a.history->takes_no_derivatives && in.b >= 0 && !is_constant(variables_[in.b].read())) {
      return "the target is a view taken under NoGrad";
    }
    return {};
  }

  void execute(const Instruction& in) {
    const Variable a = variables_[in.a];
    if (is_view(in.kind)) {
      define_view(in, a);
    } else if (is_in_place(in.kind)) {
      change(in, a);
    } else if (in.kind == Kind::kClone || in.kind == Kind::kSin) {
      std::vector<Number> numbers = a.read();
      if (in.kind == Kind::kSin) {
        for (Number& n : numbers) n = chain(n, std::cos(n.value), std::sin(n.value));
      }
      define(in.is_recorded ? numbers : without_derivatives(numbers), a.shape);
    } else {
      const Shape shape = broadcast_shapes(a.shape, variables_[in.b].shape, "interpret");
      std::vector<Number> numbers = expanded(a, shape);
      const std::vector<Number> others = expanded(variables_[in.b], shape);
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] =
            in.kind == Kind::kAdd ? add(numbers[i], others[i], 1) : multiply(numbers[i], others[i]);
      }
      define(in.is_recorded ? numbers : without_derivatives(numbers), shape);
    }
  }

  Outcome outcome(const std::vector<int>& outputs) const {
    Outcome result;
    for (const Variable& variable : variables_) {
      result.values.emplace_back();
      for (const Number& n : variable.read()) result.values.back().push_back(n.value);
    }
    result.gradients.assign(derivatives_, 0);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const std::vector<Number> numbers = variables_[outputs[k]].read();
      for (size_t i = 0; i < numbers.size(); ++i) {
        for (int j = 0; j < derivatives_; ++j) {
          result.gradients[j] +=
              weight(static_cast<int>(k), static_cast<int64_t>(i)) * numbers[i].d[j];
        }
      }
    }
    return result;
  }

 private:
  static Number chain(const Number& x, double slope, double value) {
    Number y{value, x.d};
    for (double& d : y.d) d *= slope;
    return y;
  }
  static Number add(const Number& x, const Number& y, double alpha) {
    Number sum{x.value + alpha * y.value, x.d};
    for (int i = 0; i < kMaxDerivatives; ++i) sum.d[i] += alpha * y.d[i];
    return sum;
  }
  static Number multiply(const Number& x, const Number& y) {
    Number product{x.value * y.value, {}};
    for (int i = 0; i < kMaxDerivatives; ++i) product.d[i] = x.d[i] * y.value + x.value * y.d[i];
    return product;
  }
  static std::vector<Number> without_derivatives(std::vector<Number> numbers) {
    for (Number& n : numbers) n.d = {};
    return numbers;
  }
  static std::vector<Number> expanded(const Variable& x, const Shape& shape) {
    const std::vector<Number> numbers = x.read();
    std::vector<Number> result;
    for (int64_t i = 0; i < numel(shape); ++i) {
      result.push_back(numbers[broadcast_position(x.shape, shape, i)]);
    }
    return result;
  }

  void define(const std::vector<Number>& numbers, const Shape& shape) {
    Variable x{std::make_shared<std::vector<double>>(), std::make_shared<History>(), shape, {}};
    for (const Number& n : numbers) {
      x.places.push_back(static_cast<int>(x.places.size()));
      x.memory->push_back(n.value);
      x.history->d.push_back(n.d);
    }
    variables_.push_back(x);
  }

  void define_view(const Instruction& in, const Variable& a) {
    Variable y = a;
    if (in.kind == Kind::kDetach || (!in.is_recorded && !a.history->takes_no_derivatives)) {
      y.history = std::make_shared<History>();
      y.history->d.resize(a.memory->size());
      y.history->takes_no_derivatives = in.kind != Kind::kDetach;
    }
    const Shape& n = in.numbers;
    // Element (i, j, ...) of the view is element index(i, j, ...) of a.
    const auto look = [&](const Shape& shape, auto&& index) {
      y.shape = shape;
      y.places.clear();
      for (int64_t e = 0; e < numel(shape); ++e) {
        std::vector<int64_t> at(shape.size());
        int64_t rest = e;
        for (int d = shape.size() - 1; d >= 0; --d) {
          at[d] = rest % shape[d];
          rest /= shape[d];
        }
        const std::vector<int64_t> from = index(at);
        int64_t position = 0;
        for (int d = 0; d < a.shape.size(); ++d) position = position * a.shape[d] + from[d];
        y.places.push_back(a.places[position]);
      }
    };
    Shape shape = a.shape;
    using Index = std::vector<int64_t>;
    if (in.kind == Kind::kSlice) {
      shape[n[0]] = n[2] > n[1] ? (n[2] - n[1] - 1) / n[3] + 1 : 0;
      look(shape, [&](Index at) {
        at[n[0]] = n[1] + at[n[0]] * n[3];
        return at;
      });
    } else if (in.kind == Kind::kSelect) {
      shape.erase(n[0]);
      look(shape, [&](Index at) {
        at.insert(at.begin() + n[0], n[1]);
        return at;
      });
    } else if (in.kind == Kind::kTranspose) {
      std::swap(shape[n[0]], shape[n[1]]);
      look(shape, [&](Index at) {
        std::swap(at[n[0]], at[n[1]]);
        return at;
      });
    } else if (in.kind == Kind::kExpand) {
      look(n, [&](const Index& at) {
        Index from(at.end() - a.shape.size(), at.end());
        for (int d = 0; d < a.shape.size(); ++d) {
          if (a.shape[d] == 1) from[d] = 0;
        }
        return from;
      });
    } else if (in.kind == Kind::kView) {
      y.shape = n;
    } else if (in.kind == Kind::kUnsqueeze) {
      y.shape.insert(n[0], 1);
    }
    variables_.push_back(y);
  }

  void change(const Instruction& in, const Variable& a) {
    std::vector<Number> numbers = a.read();
    const std::vector<Number> others =
        in.b < 0 ? std::vector<Number>(numbers.size(), Number{in.scalar, {}})
                 : expanded(variables_[in.b], a.shape);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (in.kind == Kind::kAddInPlace) {
        numbers[i] = add(numbers[i], others[i], in.b < 0 ? 1 : in.scalar);
      } else if (in.kind == Kind::kMulInPlace) {
        numbers[i] = multiply(numbers[i], others[i]);
      } else {
        numbers[i] = others[i];
      }
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      (*a.memory)[a.places[i]] = numbers[i].value;
      if (in.is_recorded) a.history->d[a.places[i]] = numbers[i].d;
    }
  }

  std::vector<Variable> variables_;
  int derivatives_ = 0;
};

// ---- Random programs ----

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Program program() {
    Program p;
    int derivatives = 0;
    const int inputs = static_cast<int>(2 + random_.below(3));
    for (int i = 0; i < inputs; ++i) {
      Input input{random_shape(), {}, i == 0 || random_.below(2) == 0};
      const int64_t size = numel(input.shape);
      if (input.requires_grad && derivatives + size > kMaxDerivatives) input.requires_grad = false;
      if (input.requires_grad) derivatives += static_cast<int>(size);
      for (int64_t e = 0; e < size; ++e) input.values.push_back(random_.uniform(-1.2f, 1.2f));
      p.inputs.push_back(input);
    }
    // It grows beside an interpretation, which knows the shapes.
    Interpreter so_far(p.inputs);
    bool refused = false;
    const int length = static_cast<int>(3 + random_.below(12));
    while (static_cast<int>(p.instructions.size()) < length && !refused) {
      const std::optional<Instruction> next = instruction(so_far.variables());
      if (!next) continue;
      // A few programs end in an instruction that must be refused.
      refused = !so_far.refusal_of(*next).empty();
      if (refused && random_.below(12) != 0) {
        refused = false;
        continue;
      }
      p.instructions.push_back(*next);
      if (!refused) so_far.execute(*next);
    }
    const int variables = static_cast<int>(so_far.variables().size());
    std::set<int> outputs;
    for (int k = 0; k < 3; ++k) outputs.insert(static_cast<int>(random_.below(variables)));
    outputs.insert(variables - 1);
    p.outputs.assign(outputs.begin(), outputs.end());
    return p;
  }

 private:
  Shape random_shape() {
    static const std::vector<Shape> kShapes = {{},        {1},       {2},    {3},    {4},    {6},
                                               {2, 2},    {2, 3},    {3, 1}, {1, 4}, {3, 2}, {4, 1},
                                               {2, 1, 2}, {1, 2, 3}, {0},    {2, 0}};
    // The last two, empty, are drawn seldom.
    const uint64_t i = random_.below(kShapes.size() * 4);
    return kShapes[i < kShapes.size() ? i : i % (kShapes.size() - 2)];
  }

  std::optional<Instruction> instruction(const std::vector<Variable>& variables) {
    Instruction in{static_cast<Kind>(random_.below(static_cast<int>(Kind::kFillInPlace) + 1))};
    in.is_recorded = random_.below(8) != 0;
    // Half the operands are recent.
    const uint64_t count = variables.size();
    const auto pick = [&] {
      return static_cast<int>(random_.below(2) == 0 && count > 3 ? count - 3 + random_.below(3)
                                                                 : random_.below(count));
    };
    in.a = pick();
    // Views of detached tensors whose elements repeat, bases like any other, would be too rare.
    if (variables.back().repeats_places() && random_.below(2) == 0) {
      in.kind = random_.below(2) == 0 ? Kind::kDetach : Kind::kSelect;
      in.a = static_cast<int>(count) - 1;
    }
    const Variable& a = variables[in.a];
    const int dims = a.shape.size();
    const auto any_dim = [&] { return static_cast<int64_t>(random_.below(dims)); };
    in.scalar = std::round(random_.uniform(-2.0f, 2.0f) * 8) / 8;
    switch (in.kind) {
      case Kind::kSlice: {
        if (dims == 0) return std::nullopt;
        const int64_t dim = any_dim(), size = a.shape[dim];
        const auto begin = static_cast<int64_t>(random_.below(size + 1));
        if (begin == size && random_.below(4) != 0) return std::nullopt;
        const int64_t end = begin + static_cast<int64_t>(random_.below(size - begin + 1));
        if (begin == end && random_.below(8) != 0) return std::nullopt;
        in.numbers = {dim, begin, end, static_cast<int64_t>(1 + random_.below(2))};
        return in;
      }
      case Kind::kSelect: {
        if (dims == 0) return std::nullopt;
        const int64_t dim = any_dim(), size = a.shape[dim];
        if (size == 0) return std::nullopt;
        in.numbers = {dim, static_cast<int64_t>(random_.below(size))};
        return in;
      }
      case Kind::kTranspose:
        if (dims < 2) return std::nullopt;
        in.numbers = {any_dim(), any_dim()};
        return in;
      case Kind::kExpand: {
        in.numbers = a.shape;
        if (dims < 3 && random_.below(2) == 0) {
          in.numbers.insert(0, 2);
          return in;
        }
        for (int64_t& size : in.numbers) {
          if (size == 1) {
            size = 2;
            return in;
          }
        }
        return std::nullopt;
      }
      case Kind::kView: {
        if (!a.is_consecutive()) return std::nullopt;
        const int64_t size = a.size();
        in.numbers = {size};
        if (size > 0 && size % 2 == 0 && random_.below(2) == 0) in.numbers = {2, size / 2};
        if (size > 0 && size % 3 == 0 && random_.below(2) == 0) in.numbers = {size / 3, 3};
        return in;
      }
      case Kind::kUnsqueeze:
        if (dims >= 3) return std::nullopt;
        in.numbers = {static_cast<int64_t>(random_.below(dims + 1))};
        return in;
      case Kind::kAdd:
      case Kind::kMul:
        in.b = pick();
        return broadcast(a.shape, variables[in.b].shape) ? std::optional(in) : std::nullopt;
      case Kind::kAddInPlace:
      case Kind::kMulInPlace:
      case Kind::kCopyInPlace:
        if (in.kind != Kind::kCopyInPlace && random_.below(4) == 0) return in;  // by the scalar
        in.b = pick();
        return broadcast(a.shape, variables[in.b].shape) == a.shape ? std::optional(in)
                                                                    : std::nullopt;
      default:
        return in;
    }
  }

  static std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
    try {
      const Shape shape = broadcast_shapes(a, b, "broadcast");
      if (shape.size() <= 3 && numel(shape) <= 24) return shape;
    } catch (const Error&) {
    }
    return std::nullopt;
  }

  Philox random_;
};

// ---- The engine ----

Tensor execute(const Instruction& in, std::vector<Tensor>& variables) {
  Tensor& a = variables[in.a];
  const Shape& n = in.numbers;
  const Tensor b = in.b >= 0 ? variables[in.b] : Tensor::scalar(in.scalar, DType::f64);
  switch (in.kind) {
    case Kind::kSlice:
      return ops::slice(a, n[0], n[1], n[2], n[3]);
    case Kind::kSelect:
      return ops::select(a, n[0], n[1]);
    case Kind::kTranspose:
      return ops::transpose(a, n[0], n[1]);
    case Kind::kExpand:
      return ops::expand(a, n);
    case Kind::kView:
      return ops::view(a, n);
    case Kind::kUnsqueeze:
      return ops::unsqueeze(a, n[0]);
    case Kind::kDetach:
      return detach(a);
    case Kind::kClone:
      return ops::clone(a);
    case Kind::kSin:
      return ops::sin(a);
    case Kind::kAdd:
      return ops::add(a, b);
    case Kind::kMul:
      return ops::mul(a, b);
    case Kind::kAddInPlace:
      ops::add_(a, b, in.b < 0 ? 1 : in.scalar);
      return {};
    case Kind::kMulInPlace:
      ops::mul_(a, b);
      return {};
    case Kind::kCopyInPlace:
      ops::copy_(a, b);
      return {};
    case Kind::kFillInPlace:
      ops::fill_(a, in.scalar);
      return {};
  }
  return {};
}

}  // namespace

const std::vector<std::string> kRefusalKinds = {
    "is a leaf that requires a gradient",
    "is a view of a leaf that requires a gradient",
    "is a view taken while nothing was recorded; changing it",
    "is used after a recorded op changed its elements",
    "several elements of the target",
    "share some of their elements",
    "several of whose elements share memory",
    "was changed in place",
};

std::string refusal_kind(const std::string& message) {
  for (const std::string& kind : kRefusalKinds) {
    if (message.find(kind) != std::string::npos) return kind;
  }
  return {};
}

Program random_program(uint64_t seed) { return Generator(seed).program(); }

Outcome interpret(const Program& program) {
  Interpreter interpreter(program.inputs);
  for (const Instruction& in : program.instructions) {
    if (const std::string refusal = interpreter.refusal_of(in); !refusal.empty()) {
      return {.refusal = refusal};
    }
    interpreter.execute(in);
  }
  return interpreter.outcome(program.outputs);
}

Outcome run(const Program& program) {
  Outcome outcome;
  std::vector<Tensor> variables;
  for (const Input& input : program.inputs) {
    variables.push_back(Tensor::from(input.values, input.shape));
    variables.back().set_requires_grad(input.requires_grad);
  }
  try {
    for (const Instruction& in : program.instructions) {
      const GradMode mode(in.is_recorded);
      if (const Tensor made = execute(in, variables); made.defined()) variables.push_back(made);
    }
    Tensor loss = Tensor::scalar(0, DType::f64);
    for (size_t k = 0; k < program.outputs.size(); ++k) {
      const Tensor& output = variables[program.outputs[k]];
      std::vector<double> weights;
      for (int64_t i = 0; i < output.numel(); ++i) {
        weights.push_back(weight(static_cast<int>(k), i));
      }
      loss = loss + ops::sum(output * Tensor::from(weights, output.shape()));
    }
    if (loss.requires_grad()) backward(loss);
  } catch (const Error& error) {
    return {.refusal = error.what()};
  }
  for (const Tensor& variable : variables) outcome.values.push_back(variable.to_vector());
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (!program.inputs[i].requires_grad) continue;
    const Tensor gradient = variables[i].grad();
    const std::vector<double> values =
        gradient.defined() ? gradient.to_vector() : std::vector<double>(variables[i].numel());
    outcome.gradients.insert(outcome.gradients.end(), values.begin(), values.end());
  }
  return outcome;
}

std::string python_source(const Program& program) {
  std::string text;
  int variables = 0;
  for (const Input& input : program.inputs) {
    text += fmt::format("v{} = torch.tensor([{}], dtype=torch.float64).reshape({}).clone(){}\n",
                        variables++, fmt::join(input.values, ", "), input.shape,
                        input.requires_grad ? ".requires_grad_()" : "");
  }
  for (const Instruction& in : program.instructions) {
    const Shape& n = in.numbers;
    const std::string a = fmt::format("v{}", in.a);
    const std::string b = in.b >= 0 ? fmt::format("v{}", in.b) : fmt::format("{}", in.scalar);
    const auto value = [&]() -> std::string {
      switch (in.kind) {
        case Kind::kSlice: {
          std::string before;
          for (int64_t d = 0; d < n[0]; ++d) before += ":, ";
          return fmt::format("{}[{}{}:{}:{}]", a, before, n[1], n[2], n[3]);
        }
        case Kind::kSelect:
          return fmt::format("{}.select({}, {})", a, n[0], n[1]);
        case Kind::kTranspose:
          return fmt::format("{}.transpose({}, {})", a, n[0], n[1]);
        case Kind::kExpand:
          return fmt::format("{}.expand({})", a, n);
        case Kind::kView:
          return fmt::format("{}.view({})", a, n);
        case Kind::kUnsqueeze:
          return fmt::format("{}.unsqueeze({})", a, n[0]);
        case Kind::kDetach:
          return a + ".detach()";
        case Kind::kClone:
          return a + ".clone(memory_format=torch.contiguous_format)";
        case Kind::kSin:
          return "torch.sin(" + a + ").contiguous()";
        case Kind::kAdd:
          return fmt::format("({} + {}).contiguous()", a, b);
        case Kind::kMul:
          return fmt::format("({} * {}).contiguous()", a, b);
        case Kind::kAddInPlace:
          return fmt::format("{}.add_({}, alpha={})", a, b, in.b < 0 ? 1 : in.scalar);
        case Kind::kMulInPlace:
          return fmt::format("{}.mul_({})", a, b);
        case Kind::kCopyInPlace:
          return fmt::format("{}.copy_({})", a, b);
        case Kind::kFillInPlace:
          return fmt::format("{}.fill_({})", a, b);
      }
      return {};
    }();
    if (!in.is_recorded) text += "with torch.no_grad(): ";
    if (!is_in_place(in.kind)) text += fmt::format("v{} = ", variables++);
    text += value + "\n";
  }
  return text;
}

}  // namespace weft::view_programs
