// The differentiable operations of autograd/ops.h as functions and methods, a line for each.
//
// Names are PyTorch's. Beside a tensor a number may stand; in-place forms end in an underscore and
// return the tensor itself.
#include <cmath>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/view.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/docstrings.h"
#include "python/exchange.h"

namespace weft::python {
namespace {

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);
using Arithmetic = Tensor (*)(const Tensor&, const Tensor&, std::optional<DType> result);

/// The end of an op's form in place. Throws Error where integers would lose the result's fractions,
/// or a mask its numbers.
void copy_over(Tensor& x, const Tensor& result) {
  WEFT_CHECK(x.dtype() != DType::boolean || result.dtype() == DType::boolean,
             "{} would lose the numbers of the result, {}", x, result);
  WEFT_CHECK(is_floating(x.dtype()) || !is_floating(result.dtype()),
             "{} would lose the fractions of the result, {}", x, result);
  ops::copy_(x, result);
}

/// x as an op reads it whose result is copied over x: a copy where a gradient of these inputs may
/// need it later.
Tensor as_it_was(const Tensor& x, const Tensors& inputs) {
  return is_recording(inputs) ? ops::clone(x) : x;
}

/// Where an operation is entered: as weft.NAME(input, ...) and as Tensor.NAME(...).
struct Table {
  nb::module_& m;
  nb::class_<Tensor>& t;

  /// A function whose first argument is the tensor; `extra` describes the others, and has a
  /// docstring where that of ops::NAME is not enough.
  template <class F, class... Extra>
  void op(const char* name, F f, const Extra&... extra) {
    define_op(m, name, f, "input"_a, extra..., Unlocked());
    t.def(name, f, comment_on("ops::" + std::string(name)), extra..., Unlocked());
  }

  /// Runs `f`, which changes the tensor in the place of method `name`, and returns the tensor.
  template <class F>
  static nb::object changed(nb::handle_t<Tensor> self, const std::string& name, const F& f) {
    Tensor target = nb::cast<Tensor>(self);
    check_writable(name, target);
    {
      const nb::gil_scoped_release unlocked;
      f(target);
    }
    return nb::borrow(self);
  }
  /// NAME_(...): the op's result is copied over the tensor.
  template <class F>
  void in_place(const std::string& name, F f) {
    t.def(
        name.c_str(), [f, name](nb::handle_t<Tensor> self) { return changed(self, name, f); },
        docs_in_place(name).c_str());
  }
  static std::string docs_in_place(const std::string& name) {
    return fmt::format("{}, copied over the tensor, which keeps its dtype.\n\n{}",
                       name.substr(0, name.size() - 1), docs("ops::add_"));
  }
  template <class F, class... Extra>
  void in_place_beside(const std::string& name, F f, const Extra&... extra) {
    t.def(
        name.c_str(),
        [f, name](nb::handle_t<Tensor> self, const Operand& operand) {
          return changed(self, name, [&](Tensor& x) { f(x, operand); });
        },
        "other"_a, docs("ops::add_"), extra...);
  }

  /// Names of one function, the first of them that of the header.
  void unary(std::initializer_list<const char*> names, Unary f) {
    const std::string documented = "ops::" + std::string(*names.begin());
    for (const char* name : names) {
      op(name, f, docs(documented));
      in_place(std::string(name) + "_", [f](Tensor& x) { copy_over(x, f(as_it_was(x, {x}))); });
    }
  }

  /// f(x, y) with a tensor or a number for y.
  static auto beside(Binary f) {
    return [f](const Tensor& x, const Operand& y) { return f(x, y.beside(x)); };
  }
  static auto beside(Arithmetic f) {
    return [f](const Tensor& x, const Operand& y) {
      return f(x, y.term_beside(x), y.result_dtype(x));
    };
  }
  template <class F>
  void binary(const std::string& name, F f) {
    const char* const text = docs("ops::" + name);
    m.def(name.c_str(), beside(f), "input"_a, "other"_a, Unlocked(), text);
    t.def(name.c_str(), beside(f), "other"_a, Unlocked(), text);
  }
  /// __add__ and __radd__.
  void operators(const std::string& symbol, Arithmetic f) {
    t.def(("__" + symbol + "__").c_str(), beside(f), Unlocked(), nb::is_operator());
    t.def(("__r" + symbol + "__").c_str(),
          [f](const Tensor& x, const Operand& y) {
            return f(y.term_beside(x), x, y.result_dtype(x));
          },
          Unlocked(), nb::is_operator());
  }
  void arithmetic(const std::string& name, Arithmetic f, const std::string& symbol) {
    binary(name, f);
    operators(symbol, f);
  }
  /// Its form in place, by which __iadd__ goes.
  void arithmetic_in_place(const std::string& name, const std::string& symbol,
                           void (*f)(Tensor&, const Tensor&)) {
    const auto change = [f](Tensor& x, const Operand& y) { f(x, y.term_beside(x)); };
    in_place_beside(name + "_", change);
    in_place_beside("__i" + symbol + "__", change, nb::is_operator());
  }
  void comparison(const std::string& name, Binary f) {
    const auto compare = [f](const Tensor& x, const Operand& y) {
      return f(x, y.compared_with(x));
    };
    const char* const text = docs("ops::" + name);
    m.def(name.c_str(), compare, "input"_a, "other"_a, Unlocked(), text);
    t.def(name.c_str(), compare, "other"_a, Unlocked(), text);
    t.def(("__" + name + "__").c_str(), compare, Unlocked(), nb::is_operator());
  }

  /// Over all dimensions, or those of `dim`: an int or several.
  using Reduction = Tensor (*)(const Tensor&, const Shape&, bool);
  void reduction(const char* name, Reduction f) {
    op(
        name,
        [f = f](const Tensor& x, const std::optional<Shape>& dim, bool keepdim,
                const MaybeDType& dtype) {
          const Tensor y = f(dtype ? ops::cast(x, *dtype) : x, dim.value_or(Shape{}), keepdim);
          // Sums of integers are in int64.
          return dtype ? ops::cast(y, *dtype) : y;
        },
        "dim"_a = nb::none(), "keepdim"_a = false, nb::kw_only(), "dtype"_a = nb::none());
  }
};

/// Writes a number over x. An int is exact in int64, too, beyond 2^53. Throws Error for one that an
/// integer x does not hold.
void fill_with(Tensor& x, const Operand& value) {
  if (value.kind == Operand::Kind::kTensor) {
    WEFT_CHECK(value.tensor.dim() == 0,
               "fill_: expected a number or a tensor without dimensions, got {}", value.tensor);
    ops::copy_(x, ops::to(value.tensor, x.device()));
    return;
  }
  value.check_fits("fill_", x);
  if (is_integral(x.dtype()) && value.kind != Operand::Kind::kFloat) {
    ops::copy_(x, value.beside(x));
  } else {
    ops::fill_(x, value.as_double());
  }
}

/// A tensor of one element as a number.
Operand number_of(const Operand& x) {
  Operand number = x;
  WEFT_CHECK(x.kind != Operand::Kind::kTensor || !x.tensor.requires_grad(),
             "arange: expected numbers, or tensors whose gradient is not asked for, got {}",
             x.tensor);
  if (x.kind == Operand::Kind::kTensor) read_number(nb::cast(x.tensor).attr("item")(), number);
  return number;
}

Tensor filled(const Shape& shape, const Operand& value, DType dtype, Device device) {
  Tensor x = ops::full(shape, 0, dtype, device);
  fill_with(x, value);
  return x;
}

void bind_elementwise(Table& table) {
  table.op(
      "add",
      [](const Tensor& x, const Operand& y, double alpha) {
        return ops::add(x, y.term_beside(x), alpha, y.result_dtype(x));
      },
      "other"_a, nb::kw_only(), "alpha"_a = 1.0);
  table.op(
      "sub",
      [](const Tensor& x, const Operand& y, double alpha) {
        const Tensor term = y.term_beside(x);
        return alpha == 1 ? ops::sub(x, term, y.result_dtype(x))
                          : ops::add(x, term, -alpha, y.result_dtype(x));
      },
      "other"_a, nb::kw_only(), "alpha"_a = 1.0, "input - alpha other, as add.");
  table.operators("add", [](const Tensor& a, const Tensor& b, std::optional<DType> result) {
    return ops::add(a, b, 1, result);
  });
  table.operators("sub", ops::sub);
  table.arithmetic("mul", ops::mul, "mul");
  table.arithmetic("div", ops::div, "truediv");
  table.arithmetic("pow", ops::pow, "pow");
  table.arithmetic("remainder", ops::remainder, "mod");
  table.arithmetic("floor_divide", ops::floor_divide, "floordiv");
  table.binary<Binary>("maximum", ops::maximum);
  table.binary<Binary>("minimum", ops::minimum);
  table.binary<Binary>("atan2", ops::atan2);
  table.binary<Binary>("logical_and", ops::logical_and);
  table.binary<Binary>("logical_or", ops::logical_or);
  table.arithmetic_in_place("add", "add", [](Tensor& x, const Tensor& y) { ops::add_(x, y); });
  table.arithmetic_in_place("sub", "sub", [](Tensor& x, const Tensor& y) { ops::add_(x, y, -1); });
  table.arithmetic_in_place("mul", "mul", [](Tensor& x, const Tensor& y) { ops::mul_(x, y); });
  table.arithmetic_in_place("div", "truediv", [](Tensor& x, const Tensor& y) {
    copy_over(x, ops::div(as_it_was(x, {y}), y));
  });
  table.arithmetic_in_place("pow", "pow", [](Tensor& x, const Tensor& y) {
    copy_over(x, ops::pow(as_it_was(x, {x, y}), y));
  });
  table.arithmetic_in_place("remainder", "mod", [](Tensor& x, const Tensor& y) {
    copy_over(x, ops::remainder(as_it_was(x, {x, y}), y));
  });
  table.arithmetic_in_place("floor_divide", "floordiv", [](Tensor& x, const Tensor& y) {
    copy_over(x, ops::floor_divide(as_it_was(x, {x, y}), y));
  });

  table.comparison("eq", ops::eq);
  table.comparison("ne", ops::ne);
  table.comparison("lt", ops::lt);
  table.comparison("le", ops::le);
  table.comparison("gt", ops::gt);
  table.comparison("ge", ops::ge);

  table.unary({"neg", "negative", "__neg__"}, [](const Tensor& x) {
    WEFT_CHECK(x.dtype() != DType::boolean, "neg: of a mask the opposite is ~x, got {}", x);
    return ops::neg(x);
  });
  table.unary({"abs", "absolute", "__abs__"}, ops::abs);
#define WEFT_PLAIN(name) std::pair<const char*, Unary>(#name, ops::name)
  for (const auto& [name, f] :
       {WEFT_PLAIN(exp),        WEFT_PLAIN(log),    WEFT_PLAIN(sqrt),  WEFT_PLAIN(rsqrt),
        WEFT_PLAIN(reciprocal), WEFT_PLAIN(square), WEFT_PLAIN(exp2),  WEFT_PLAIN(expm1),
        WEFT_PLAIN(log2),       WEFT_PLAIN(log10),  WEFT_PLAIN(log1p), WEFT_PLAIN(tan),
        WEFT_PLAIN(asin),       WEFT_PLAIN(acos),   WEFT_PLAIN(atan),  WEFT_PLAIN(sinh),
        WEFT_PLAIN(cosh),       WEFT_PLAIN(asinh),  WEFT_PLAIN(acosh), WEFT_PLAIN(atanh),
        WEFT_PLAIN(trunc),      WEFT_PLAIN(sin),    WEFT_PLAIN(cos),   WEFT_PLAIN(tanh),
        WEFT_PLAIN(sigmoid),    WEFT_PLAIN(erf),    WEFT_PLAIN(relu),  WEFT_PLAIN(silu),
        WEFT_PLAIN(sign),       WEFT_PLAIN(floor),  WEFT_PLAIN(ceil),  WEFT_PLAIN(round)}) {
    table.unary({name}, f);
  }
#undef WEFT_PLAIN
  table.op("isnan", ops::is_nan, docs("ops::is_nan"));
  table.op("isinf", ops::isinf);
  table.op("isfinite", ops::isfinite);
  table.op(
      "masked_fill",
      [](const Tensor& x, const Tensor& mask, const Operand& value) {
        if (x.dtype() == DType::i64 && value.kind == Operand::Kind::kInt)
          return ops::where(mask, value.beside(x), x);
        if (value.kind != Operand::Kind::kTensor)
          return ops::masked_fill(x, mask, value.as_double());
        WEFT_CHECK(value.tensor.dim() == 0,
                   "masked_fill: expected a number or a tensor without dimensions, got {}",
                   value.tensor);
        return ops::where(mask, ops::cast(value.tensor, x.dtype()), x);
      },
      "mask"_a, "value"_a);
  table.op("logical_not", ops::logical_not);
  table.op(
      "gelu",
      [](const Tensor& x, const std::string& approximate) {
        WEFT_CHECK(approximate == "none" || approximate == "tanh",
                   "gelu: approximate is \"none\" or \"tanh\", got \"{}\"", approximate);
        return ops::gelu(x, approximate == "tanh" ? ops::Gelu::kTanh : ops::Gelu::kErf);
      },
      nb::kw_only(), "approximate"_a = "none");
  table.op(
      "clamp",
      [](const Tensor& x, const std::optional<Operand>& min, const std::optional<Operand>& max) {
        WEFT_CHECK(min || max, "clamp: expected min, max or both");
        using Kind = Operand::Kind;
        const auto is_double = [](const Tensor& x, const std::optional<Operand>& bound) {
          return !bound || bound->kind == Kind::kFloat ||
                 (bound->kind != Kind::kTensor && x.dtype() != DType::i64);
        };
        const auto in_doubles = [](const Tensor& x, const std::optional<Operand>& min,
                                   const std::optional<Operand>& max) {
          if (!min && !max) return x;
          return ops::clamp(x, min ? min->as_double() : -HUGE_VAL,
                            max ? max->as_double() : HUGE_VAL);
        };
        if (is_double(x, min) && is_double(x, max)) return in_doubles(x, min, max);
        const auto is_int = [](const std::optional<Operand>& bound) {
          return bound && (bound->kind == Kind::kInt || bound->kind == Kind::kBool);
        };
        WEFT_CHECK(!is_int(min) || !is_int(max) || min->integer <= max->integer,
                   "clamp: low {} is above high {}", min->integer, max->integer);
        // Where x is at a bound the gradient is its own, as beside a number.
        const auto bounded = [](const Tensor& x, const Operand& bound, Binary is_beyond) {
          const Tensor limit = bound.beside(x);
          return ops::where(ops::logical_or(is_beyond(x, limit), ops::is_nan(limit)), limit, x);
        };
        const Tensor raised =
            is_double(x, min) ? in_doubles(x, min, {}) : bounded(x, *min, ops::lt);
        return is_double(raised, max) ? in_doubles(raised, {}, max)
                                      : bounded(raised, *max, ops::gt);
      },
      "min"_a = nb::none(), "max"_a = nb::none());
  table.m.attr("clip") = table.m.attr("clamp");

  // __and__, __rand__ and __iand__.
  const auto on_bools = [&](const std::string& symbol, Binary f) {
    const auto checked = [f, symbol](const Tensor& x, const Operand& other) {
      const Tensor y = other.beside(x);
      WEFT_CHECK(x.dtype() == DType::boolean && y.dtype() == DType::boolean,
                 "__{}__: expected bool tensors, got {} and {}", symbol, x, y);
      return f(x, y);
    };
    table.t.def(("__" + symbol + "__").c_str(), checked, Unlocked(), nb::is_operator());
    table.t.def(("__r" + symbol + "__").c_str(), checked, Unlocked(), nb::is_operator());
    table.in_place_beside(
        "__i" + symbol + "__",
        [checked](Tensor& x, const Operand& y) { copy_over(x, checked(x, y)); }, nb::is_operator());
  };
  on_bools("and", ops::logical_and);
  on_bools("or", ops::logical_or);
  on_bools("xor", ops::ne);
  table.t.def("__invert__", [](const Tensor& x) {
    WEFT_CHECK(x.dtype() == DType::boolean, "__invert__: expected a bool tensor, got {}", x);
    return ops::logical_not(x);
  });
  const auto where = [](const Tensor& condition, const Operand& a, const Operand& b) {
    if (a.kind == Operand::Kind::kTensor)
      return ops::where(condition, a.tensor, b.beside(a.tensor));
    if (b.kind == Operand::Kind::kTensor)
      return ops::where(condition, a.beside(b.tensor), b.tensor);
    const bool is_real = std::max(a.kind, b.kind) == Operand::Kind::kFloat;
    const Tensor like = Tensor::empty({0}, is_real ? DType::f32 : DType::i64, condition.device());
    return ops::where(condition, a.beside(like), b.beside(like));
  };
  define_op(table.m, "where", where, "condition"_a, "input"_a, "other"_a, Unlocked());
  table.t.def(
      "where",
      [where](const Tensor& x, const Tensor& condition, const Operand& other) {
        return where(condition, Operand{.tensor = x}, other);
      },
      "condition"_a, "other"_a, Unlocked(), docs("ops::where"));

  table.in_place("zero_", [](Tensor& x) { ops::zero_(x); });
  table.in_place_beside("copy_", [](Tensor& x, const Operand& y) {
    ops::copy_(x, ops::to(y.beside(x), x.device()));
  });
  table.t.def(
      "fill_",
      [](nb::handle_t<Tensor> self, const Operand& value) {
        return Table::changed(self, "fill_", [&](Tensor& x) { fill_with(x, value); });
      },
      "value"_a, docs("ops::add_"));
}

void bind_conversions(Table& table) {
  table.op("clone", ops::clone);
  table.op("contiguous", ops::contiguous);
  for (const auto& [name, dtype] : {std::pair("double", DType::f64),
                                    {"float", DType::f32},
                                    {"half", DType::f16},
                                    {"bfloat16", DType::bf16},
                                    {"long", DType::i64},
                                    {"int", DType::i32},
                                    {"bool", DType::boolean}}) {
    table.t.def(
        name, [dtype = dtype](const Tensor& x) { return ops::cast(x, dtype); }, Unlocked(),
        "In this dtype; the tensor itself where it has it.");
  }
  table.t.def(
      "type_as", [](const Tensor& x, const Tensor& y) { return ops::cast(x, y.dtype()); },
      "other"_a, Unlocked(), "In the dtype of another.");
  table.t.def(
      "cpu", [](const Tensor& x) { return ops::to(x, {}); }, Unlocked(),
      "On the CPU; the tensor itself where it lies there.");
  table.t.def(
      "cuda",
      [](const Tensor& x, int index) {
        return ops::to(x, {DeviceType::cuda, index});
      },
      "index"_a = 0, Unlocked(), "On a GPU; the tensor itself where it lies there.");
}

void bind_views(Table& table) {
  const auto shaped = [&](const char* name, Tensor (*f)(const Tensor&, const Shape&)) {
    const char* const text = docs(std::string("ops::") + name);
    table.m.def(name, f, "input"_a, "shape"_a, Unlocked(), text);
    table.t.def(
        name,
        [f, name](const Tensor& x, const nb::args& sizes) {
          return f(x, shape_of_arguments(sizes, name));
        },
        "shape"_a, text);
  };
  shaped("reshape", ops::reshape);
  shaped("view", ops::view);
  shaped("permute", ops::permute);
  shaped("expand", ops::expand);
  table.t.def(
      "expand_as", [](const Tensor& x, const Tensor& y) { return ops::expand(x, y.shape()); },
      "other"_a, "expand to another's shape.");
  table.t.def(
      "view_as", [](const Tensor& x, const Tensor& y) { return ops::view(x, y.shape()); },
      "other"_a, "view with another's shape.");
  table.op(
      "flatten",
      [](const Tensor& x, int64_t first, int64_t last) {
        return x.dim() == 0 ? ops::reshape(x, {1}) : ops::flatten(x, first, last);
      },
      "start_dim"_a = 0, "end_dim"_a = -1);
  table.op("transpose", ops::transpose, "dim0"_a, "dim1"_a);
  table.op("swapaxes", ops::transpose, "axis0"_a, "axis1"_a, docs("ops::transpose"));
  table.op(
      "t",
      [](const Tensor& x) {
        WEFT_CHECK(x.dim() <= 2, "t: expected a matrix, got {}", x);
        return x.dim() == 2 ? ops::transpose(x, 0, 1) : x;
      },
      "A matrix transposed: a view.");
  table.op(
      "squeeze",
      [](const Tensor& x, const std::optional<Shape>& dim) {
        Tensor y = x;
        for (int d = x.dim() - 1; d >= 0; --d) {
          const bool is_named = !dim || std::ranges::any_of(*dim, [&](int64_t i) {
            return wrap_dim(i, x.dim(), "squeeze") == d;
          });
          if (is_named) y = ops::squeeze(y, d);
        }
        return y;
      },
      "dim"_a = nb::none(), "Without the dimensions, or without any, of size 1: a view.");
  table.op("unsqueeze", ops::unsqueeze, "dim"_a);
  table.op("narrow", ops::narrow, "dim"_a, "start"_a, "length"_a);
  table.op("select", ops::select, "dim"_a, "index"_a);
  table.op("split", ops::split, "split_size"_a, "dim"_a = 0);
  table.op(
      "split",
      [](const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
        Tensors pieces;
        int64_t begin = 0;
        for (int64_t size : sizes)
          pieces.push_back(ops::narrow(x, dim, std::exchange(begin, begin + size), size));
        WEFT_CHECK(begin == x.size(dim), "split: the sizes add up to {}, not to the {} of {}",
                   begin, x.size(dim), x);
        return pieces;
      },
      "split_sizes"_a, "dim"_a = 0);
  table.op("chunk", ops::chunk, "chunks"_a, "dim"_a = 0);
  table.op(
      "unbind",
      [](const Tensor& x, int64_t dim) {
        Tensors slices;
        for (int64_t i = 0; i < x.size(dim); ++i) slices.push_back(ops::select(x, dim, i));
        return slices;
      },
      "dim"_a = 0, "All slices along a dimension: views without it.");
  table.op("diagonal", ops::diagonal, "offset"_a = 0, "dim1"_a = 0, "dim2"_a = 1);
  define_op(table.m, "cat", ops::cat, "tensors"_a, "dim"_a = 0, Unlocked());
  table.m.attr("concat") = table.m.attr("cat");
  define_op(table.m, "stack", ops::stack, "tensors"_a, "dim"_a = 0, Unlocked());
}

void bind_rearrangements(Table& table) {
  table.op("index_select", ops::index_select, "dim"_a, "index"_a);
  table.op("gather", ops::gather, "dim"_a, "index"_a);
  table.op("scatter_add", ops::scatter_add, "dim"_a, "index"_a, "src"_a);
  table.op("flip", ops::flip, "dims"_a);
  table.op(
      "roll",
      [](const Tensor& x, const Shape& shifts, const std::optional<Shape>& dims) {
        return ops::roll(x, shifts, dims.value_or(Shape{}));
      },
      "shifts"_a, "dims"_a = nb::none());
  const auto repeated = [&](const char* name, Tensor (*f)(const Tensor&, const Shape&)) {
    table.t.def(
        name,
        [f, name](const Tensor& x, const nb::args& repeats) {
          return f(x, shape_of_arguments(repeats, name));
        },
        "repeats"_a, docs(std::string("ops::") + name));
  };
  repeated("repeat", ops::repeat);
  repeated("tile", ops::tile);
  define_op(table.m, "tile", ops::tile, "input"_a, "dims"_a, Unlocked());
  define_op(
      table.m, "meshgrid",
      [](const nb::args& tensors, const std::string& indexing) {
        WEFT_CHECK(indexing == "ij" || indexing == "xy",
                   "meshgrid: indexing is \"ij\" or \"xy\", got \"{}\"", indexing);
        // Each as an argument, or all as one list.
        const bool is_list = tensors.size() == 1 && !nb::isinstance<Tensor>(tensors[0]);
        const auto vectors = is_list ? nb::cast<Tensors>(tensors[0]) : nb::cast<Tensors>(tensors);
        const nb::gil_scoped_release unlocked;
        return ops::meshgrid(vectors, indexing == "ij" ? ops::Indexing::kIJ : ops::Indexing::kXY);
      },
      "tensors"_a, "indexing"_a = "ij");
  table.op("tril", ops::tril, "diagonal"_a = 0);
  table.op("triu", ops::triu, "diagonal"_a = 0);
  const auto nonzero = [](const Tensor& x, bool as_tuple) -> nb::object {
    Tensor places;
    Tensors columns;
    {
      const nb::gil_scoped_release unlocked;
      places = ops::nonzero(as_tuple && x.dim() == 0 ? ops::reshape(x, {1}) : x);
      for (int64_t d = 0; as_tuple && d < places.size(1); ++d) {
        columns.push_back(ops::select(places, 1, d));
      }
    }
    return as_tuple ? nb::object(nb::tuple(nb::cast(columns))) : nb::cast(places);
  };
  define_op(table.m, "nonzero", nonzero, "input"_a, nb::kw_only(), "as_tuple"_a = false);
  table.t.def("nonzero", nonzero, nb::kw_only(), "as_tuple"_a = false, docs("ops::nonzero"));
  table.op("sort", ops::sort, "dim"_a = -1, "descending"_a = false);
  table.op("argsort", ops::argsort, "dim"_a = -1, "descending"_a = false);
  table.op("topk", ops::topk, "k"_a, "dim"_a = -1, "largest"_a = true);
  table.op("cumsum", ops::cumsum, "dim"_a);
  // Always sorted, asked for or not.
  const auto unique = [](const Tensor& x, bool, bool inverse, bool counts,
                         std::optional<int64_t> dim) -> nb::object {
    Tensors all;
    {
      const nb::gil_scoped_release unlocked;
      all = ops::unique(x, inverse, counts, dim);
    }
    return all.size() == 1 ? nb::cast(all[0]) : nb::tuple(nb::cast(all));
  };
  define_op(table.m, "unique", unique, "input"_a, "sorted"_a = true, "return_inverse"_a = false,
            "return_counts"_a = false, "dim"_a = nb::none());
  table.t.def("unique", unique, "sorted"_a = true, "return_inverse"_a = false,
              "return_counts"_a = false, "dim"_a = nb::none(), docs("ops::unique"));
}

/// max and min: of all elements; of two tensors; along a dimension, with the places.
void bind_extreme(Table& table, const char* name, Tensor (*all)(const Tensor&, const Shape&, bool),
                  Binary of_two, Tensor (*place)(const Tensor&, int64_t, bool)) {
  table.op(name, [all](const Tensor& x) { return all(x, {}, false); });
  table.op(
      name, [of_two](const Tensor& x, const Tensor& y) { return of_two(x, y); }, "other"_a,
      docs("ops::maximum"));
  table.op(
      name,
      [place](const Tensor& x, int64_t dim, bool keepdim) {
        const Tensor index = place(x, dim, true);
        const Tensor value = ops::gather(x, dim, index);
        return keepdim ? std::pair(value, index)
                       : std::pair(ops::squeeze(value, dim), ops::squeeze(index, dim));
      },
      "dim"_a, "keepdim"_a = false, "(values, indices): the first of equals, and its gradient.");
  table.op((std::string("arg") + name).c_str(),
           [place](const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
             if (dim) return place(x, *dim, keepdim);
             const Tensor index = place(ops::reshape(x, {-1}), 0, false);
             return keepdim ? ops::reshape(index, Shape::filled(x.dim(), 1)) : index;
           },
           "dim"_a = nb::none(), "keepdim"_a = false);
  table.op((std::string("a") + name).c_str(),
           [all](const Tensor& x, const std::optional<Shape>& dim, bool keepdim) {
             return all(x, dim.value_or(Shape{}), keepdim);
           },
           "dim"_a = nb::none(), "keepdim"_a = false, docs("ops::max"));
}

void bind_reductions(Table& table) {
  table.reduction("sum", ops::sum);
  table.reduction("mean", ops::mean);
  table.reduction("prod", ops::prod);
  bind_extreme(table, "max", ops::max, ops::maximum, ops::argmax);
  bind_extreme(table, "min", ops::min, ops::minimum, ops::argmin);
  for (const auto& [name, f] : {std::pair("var", &ops::var), {"std", &ops::std}}) {
    table.op(
        name,
        [f = f](const Tensor& x, const std::optional<Shape>& dim, double correction, bool keepdim) {
          return f(x, dim.value_or(Shape{}), correction, keepdim);
        },
        "dim"_a = nb::none(), nb::kw_only(), "correction"_a = 1.0, "keepdim"_a = false);
  }
  table.op(
      "norm",
      [](const Tensor& x, double p, const std::optional<Shape>& dim, bool keepdim) {
        return ops::norm(x, p, dim.value_or(Shape{}), keepdim);
      },
      "p"_a = 2.0, "dim"_a = nb::none(), "keepdim"_a = false);
  table.reduction("logsumexp", ops::logsumexp);
  table.reduction("any", ops::any);
  table.reduction("all", ops::all);
  table.op("trace", ops::trace);
  table.op(
      "sum_to_size", [](const Tensor& x, const Shape& size) { return ops::sum_to(x, size); },
      "size"_a, docs("ops::sum_to"));
}

void bind_products(Table& table) {
  table.op("matmul", ops::matmul, "other"_a);
  table.t.def("__matmul__", ops::matmul, Unlocked(), nb::is_operator());
  const auto of_dims = [&](const char* name, int dims) {
    table.op(
        name,
        [name, dims](const Tensor& a, const Tensor& b) {
          WEFT_CHECK(a.dim() == dims && b.dim() == dims,
                     "{}: expected {} dimensions, got {} and {}", name, dims, a, b);
          return ops::matmul(a, b);
        },
        "other"_a, "matmul of so many dimensions alone.");
  };
  table.op("outer", ops::outer, "vec2"_a);
  define_op(
      table.m, "einsum",
      [](const std::string& equation, const nb::args& operands) {
        const bool is_list = operands.size() == 1 && nb::isinstance<nb::list>(operands[0]);
        const auto tensors =
            nb::cast<Tensors>(is_list ? nb::handle(operands[0]) : nb::handle(operands));
        const nb::gil_scoped_release unlocked;
        return ops::einsum(equation, tensors);
      },
      "equation"_a, "operands"_a);
  of_dims("dot", 1);
  of_dims("mm", 2);
  of_dims("bmm", 3);
  for (const auto& [name, f] :
       {std::pair("softmax", &ops::softmax), {"log_softmax", &ops::log_softmax}}) {
    table.op(
        name,
        [f = f](const Tensor& x, int64_t dim, const MaybeDType& dtype) {
          return f(dtype ? ops::cast(x, *dtype) : x, dim);
        },
        "dim"_a, "dtype"_a = nb::none());
  }
}

void bind_creation(Table& table) {
  nb::module_& m = table.m;
  const auto sized = [&](const char* name, auto make, const char* text) {
    m.def(
        name,
        [make, name](const nb::args& size, const MaybeDType& dtype, const MaybeDevice& device,
                     bool requires_grad) {
          Tensor x = make(shape_of_arguments(size, name), dtype.value_or(DType::f32),
                          device.value_or(Device{}));
          if (requires_grad) x.set_requires_grad(true);
          return x;
        },
        "size"_a, nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none(),
        "requires_grad"_a = false, text);
  };
  sized(
      "zeros", [](const Shape& s, DType t, Device d) { return ops::full(s, 0, t, d); },
      "All elements are 0.");
  sized("ones", ops::ones, docs("ops::ones"));
  sized("empty", Tensor::empty, docs("weft::Tensor::empty"));
  for (const auto& [name, draw] : {std::pair("rand", &ops::rand), {"randn", &ops::randn}}) {
    const char* const text = docs(std::string("ops::") + name);
    sized(
        name, [draw = draw](const Shape& s, DType t, Device d) { return ops::to(draw(s, t), d); },
        text);
    m.def(
        (std::string(name) + "_like").c_str(),
        [draw = draw](const Tensor& x) { return ops::to(draw(x.shape(), x.dtype()), x.device()); },
        "input"_a, text);
  }
  define_op(
      m, "full",
      [](const Shape& size, const Operand& value, const MaybeDType& dtype,
         const MaybeDevice& device, bool requires_grad) {
        const DType natural = value.kind == Operand::Kind::kTensor  ? value.tensor.dtype()
                              : value.kind == Operand::Kind::kFloat ? DType::f32
                              : value.kind == Operand::Kind::kInt   ? DType::i64
                                                                    : DType::boolean;
        Tensor x = filled(size, value, dtype.value_or(natural), device.value_or(Device{}));
        if (requires_grad) x.set_requires_grad(true);
        return x;
      },
      "size"_a, "fill_value"_a, nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none(),
      "requires_grad"_a = false);
  const auto like = [&](const char* name, double (*value)()) {
    m.def(
        name,
        [value](const Tensor& x, const MaybeDType& dtype, const MaybeDevice& device) {
          return ops::full(x.shape(), value(), dtype.value_or(x.dtype()),
                           device.value_or(x.device()));
        },
        "input"_a, nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none(),
        docs("ops::zeros_like"));
  };
  like("zeros_like", [] { return 0.0; });
  like("ones_like", [] { return 1.0; });
  define_op(
      m, "full_like",
      [](const Tensor& x, const Operand& value, const MaybeDType& dtype) {
        return filled(x.shape(), value, dtype.value_or(x.dtype()), x.device());
      },
      "input"_a, "fill_value"_a, nb::kw_only(), "dtype"_a = nb::none());
  m.def(
      "empty_like", [](const Tensor& x) { return Tensor::empty(x.shape(), x.dtype(), x.device()); },
      "input"_a, "Uninitialised, of the input's shape, dtype and device.");
  define_op(
      m, "arange",
      [](const Operand& start, const std::optional<Operand>& stop, const Operand& given,
         const MaybeDType& dtype, const MaybeDevice& device) {
        const Operand first = number_of(start), step = number_of(given);
        const Operand begin = stop ? first : Operand{.kind = Operand::Kind::kInt};
        const Operand end = stop ? number_of(*stop) : first;
        const double by = step.as_double();
        const bool is_real = begin.kind == Operand::Kind::kFloat ||
                             end.kind == Operand::Kind::kFloat ||
                             step.kind == Operand::Kind::kFloat;
        int64_t whole = 0;
        const bool fits = is_real || !__builtin_sub_overflow(end.integer, begin.integer, &whole);
        const double reach =
            is_real || !fits ? end.as_double() - begin.as_double() : static_cast<double>(whole);
        WEFT_CHECK(by != 0 && std::isfinite(reach / by) && reach / by >= 0,
                   "arange: a step of {} does not lead from {} to {}", by, begin.as_double(),
                   end.as_double());
        constexpr double kMost = int64_t{1} << 62;
        WEFT_CHECK(fits && reach / by < kMost, "arange: {:.0f} elements are too many", reach / by);
        const DType type = dtype.value_or(is_real ? DType::f32 : DType::i64);
        Tensor x = ops::arange(0, static_cast<int64_t>(std::ceil(reach / by)), DType::i64);
        if (is_real) {
          x = ops::cast(x, DType::f64) * by + begin.as_double();
        } else {
          x = ops::add(ops::mul(x, step.beside(x)), begin.beside(x));
        }
        return ops::to(ops::cast(x, type), device.value_or(Device{}));
      },
      "start"_a, "end"_a = nb::none(), "step"_a = 1, nb::kw_only(), "dtype"_a = nb::none(),
      "device"_a = nb::none());
  define_op(
      m, "linspace",
      [](double start, double end, int64_t steps, const MaybeDType& dtype,
         const MaybeDevice& device) {
        return ops::linspace(start, end, steps, dtype.value_or(DType::f32),
                             device.value_or(Device{}));
      },
      "start"_a, "end"_a, "steps"_a, nb::kw_only(), "dtype"_a = nb::none(),
      "device"_a = nb::none());
  define_op(
      m, "eye",
      [](int64_t rows, std::optional<int64_t> columns, const MaybeDType& dtype,
         const MaybeDevice& device) {
        const int64_t width = columns.value_or(rows);
        const int64_t ones = std::min(rows, width);
        const DType type = dtype.value_or(DType::f32);
        const Tensor y = Tensor::zeros({rows, width}, type);
        Tensor square = ops::narrow(ops::narrow(y, 0, 0, ones), 1, 0, ones);
        ops::copy_(square, ops::eye(ones, type));
        return ops::to(y, device.value_or(Device{}));
      },
      "n"_a, "m"_a = nb::none(), nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none());
  m.def("manual_seed", &manual_seed, "seed"_a, "Restarts this thread's random generator.");
  m.def(
      "get_rng_state",
      [] {
        const Generator& g = generator();
        return nb::make_tuple(g.seed, g.stream, g.offset);
      },
      "Where this thread's random generator stands: (seed, stream, offset).");
  m.def(
      "set_rng_state",
      [](const std::tuple<uint64_t, uint64_t, uint64_t>& state) {
        generator() = {std::get<0>(state), std::get<1>(state), std::get<2>(state)};
      },
      "state"_a, "Puts this thread's random generator where get_rng_state() said.");
}

}  // namespace

void bind_ops(nb::module_& m, nb::class_<Tensor>& tensor) {
  Table table{m, tensor};
  bind_elementwise(table);
  bind_conversions(table);
  bind_views(table);
  bind_rearrangements(table);
  bind_reductions(table);
  bind_products(table);
  bind_creation(table);
}

}  // namespace weft::python
