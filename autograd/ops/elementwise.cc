// Elementwise ops: each is one kernel call and the rule of its derivative beside it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/deferral.h"
#include "autograd/ops.h"
#include "autograd/ops/recording.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/fill/fill.h"
#include "kernels/unary/unary.h"
#include "kernels/where/where.h"

namespace weft {
namespace ops {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;
using B = BinaryOp;
using U = UnaryOp;
using T = const Tensor&;

Tensor compute(UnaryOp op, const Tensor& x, double alpha = 1) {
  WEFT_CHECK(x.defined(), "{}: undefined tensor", name(op));
  WEFT_CHECK(is_floating(x.dtype()) || takes_integers(op),
             "{}: expected a floating-point tensor, got {}", name(op), x);
  const DType dtype = is_test(op) ? DType::boolean : x.dtype();
  if (is_deferred(x.shape())) [[unlikely]]
    return defer({.op = op, .dtype = dtype, .alpha = alpha}, {x}, x.shape());
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  kernels::unary({.op = op, .x = x, .y = y, .alpha = alpha});
  return y;
}

Tensor compute_as(DType dtype, BinaryOp op, const Tensor& a, const Tensor& b, double alpha = 1) {
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name(op));
  if (is_deferred(shape)) [[unlikely]]
    return defer({.op = op, .dtype = dtype, .alpha = alpha}, {a, b}, shape);
  Tensor y = Tensor::empty(shape, dtype, a.device());
  const auto expanded = [&shape](const Tensor& x) {
    return x.shape() == shape ? x : view::expand(x, shape);
  };
  kernels::binary({.op = op, .a = expanded(a), .b = expanded(b), .y = y, .alpha = alpha});
  return y;
}

Tensor compute(BinaryOp op, const Tensor& a, const Tensor& b, double alpha = 1,
               std::optional<DType> result = {}) {
  WEFT_CHECK(a.defined() && b.defined(), "{}: undefined tensor", name(op));
  if (a.device() != b.device()) raw::check_operands(name(op), {a, b});
  if (is_test(op)) return compute_as(DType::boolean, op, a, b, alpha);
  return compute_as(result.value_or(promote(a.dtype(), b.dtype())), op, a, b, alpha);
}

/// A number as a 0-dim tensor beside x, as x's dtype holds it.
Tensor scalar_like(const Tensor& x, double value) {
  return full({}, value, is_floating(x.dtype()) ? x.dtype() : DType::f32, x.device());
}

/// The same for arithmetic, whose result then has the dtype of_number(x).
Tensor number_beside(const Tensor& x, double value) {
  const DType dtype = is_floating(x.dtype()) ? raw::number_dtype(x.dtype(), value) : DType::f32;
  return full({}, value, dtype, x.device());
}
std::optional<DType> of_number(const Tensor& x) {
  return is_floating(x.dtype()) ? std::optional(x.dtype()) : std::nullopt;
}

/// An operand's shape and dtype: all that backward needs of it when its values do not matter.
struct Meta {
  Shape shape;
  DType dtype;
  explicit Meta(T x) : shape(x.shape()), dtype(x.dtype()) {}
  /// The gradient of a broadcast operand: summed to its shape, in its dtype.
  Tensor fit(T gradient) const { return cast(sum_to(gradient, shape), dtype); }
};

/// Records y = op(a, b), whose operands have the gradients da(g) and db(g) before Meta::fit.
template <class Da, class Db>
Tensor record_two(std::string_view op, T a, T b, const Tensor& y,
                  std::initializer_list<const Tensor*> saved, Da da, Db db) {
  if (!is_observed(a, b)) return y;
  Tensors kept;
  kept.reserve(saved.size());
  for (const Tensor* tensor : saved) kept.push_back(*tensor);
  return record(
      op, {a, b}, y, kept, [da, db, ma = Meta(a), mb = Meta(b)](const Backward& g) -> Tensors {
        return {g.needs(0) ? ma.fit(da(g)) : Tensor(), g.needs(1) ? mb.fit(db(g)) : Tensor()};
      });
}

// Slopes of the ops whose gradient has a kernel, in recorded ops.
Tensor relu_slope(const Tensor& y) { return cast(gt(y, scalar_like(y, 0)), y.dtype()); }

Tensor silu_slope(const Tensor& x) {
  const Tensor s = sigmoid(x);
  return mul(s, 1.0 + mul(x, 1.0 - s));
}

Tensor hardswish_slope(const Tensor& x) {
  const Tensor outside = cast(gt(x, scalar_like(x, 0)), x.dtype());
  return where(ge(abs(x), scalar_like(x, 3)), outside, x / 3.0 + 0.5);
}

Tensor gelu_erf_slope(const Tensor& x) {
  const Tensor cdf = (1.0 + erf(x * (1 / std::numbers::sqrt2))) * 0.5;
  const double density = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return add(cdf, mul(x, exp(square(x) * -0.5) * density));
}

Tensor gelu_tanh_slope(const Tensor& x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const Tensor t = tanh(add(x, mul(square(x), x), 0.044715) * k);
  const Tensor inner = (1.0 + square(x) * (3 * 0.044715)) * k;
  return add((1.0 + t) * 0.5, mul(mul(x, 1.0 - square(t)), inner) * 0.5);
}

constexpr double kErfSlope = 2 * std::numbers::inv_sqrtpi;  // at 0

enum Keeps { kX, kY };
enum Autocasting { kAsItComes, kInF32 };

/// How y = op(x) is differentiated.
struct Derivative {
  UnaryOp op;
  Keeps keeps;                          // which of x and y backward has
  Tensor (*dx)(T dy, T kept);           // in recorded ops
  std::optional<BinaryOp> kernel = {};  // dx = kernel(kept, dy), unless a graph of it is needed
  Autocasting autocasting = kAsItComes;
};

// clang-format off
constexpr Derivative kDerivatives[] = {
    {U::kNeg,        kX, [](T dy, T) { return neg(dy); }},
    {U::kAbs,        kX, [](T dy, T x) { return mul(dy, sign(x)); }},
    {U::kExp,        kY, [](T dy, T y) { return mul(dy, y); }, {}, kInF32},
    {U::kLog,        kX, [](T dy, T x) { return div(dy, x); }, {}, kInF32},
    {U::kSqrt,       kY, [](T dy, T y) { return div(dy, y * 2.0); }},
    {U::kRsqrt,      kY, [](T dy, T y) { return mul(dy, mul(square(y), y)) * -0.5; }, {}, kInF32},
    {U::kReciprocal, kY, [](T dy, T y) { return neg(mul(dy, square(y))); }, {}, kInF32},
    {U::kSquare,     kX, [](T dy, T x) { return mul(dy, x * 2.0); }},
    {U::kSin,        kX, [](T dy, T x) { return mul(dy, cos(x)); }},
    {U::kCos,        kX, [](T dy, T x) { return neg(mul(dy, sin(x))); }},
    {U::kErf,        kX, [](T dy, T x) { return mul(dy, exp(neg(square(x))) * kErfSlope); }},
    {U::kTanh,       kY, [](T dy, T y) { return mul(dy, 1.0 - square(y)); }, B::kTanhGrad},
    {U::kSigmoid,    kY, [](T dy, T y) { return mul(dy, mul(y, 1.0 - y)); }, B::kSigmoidGrad},
    {U::kRelu,       kY, [](T dy, T y) { return mul(dy, relu_slope(y)); }, B::kReluGrad},
    {U::kSilu,       kX, [](T dy, T x) { return mul(dy, silu_slope(x)); }, B::kSiluGrad},
    {U::kExp2,       kY, [](T dy, T y) { return mul(dy, y) * std::numbers::ln2; }},
    {U::kExpm1,      kY, [](T dy, T y) { return mul(dy, y + 1.0); }, {}, kInF32},
    {U::kLog2,       kX, [](T dy, T x) { return div(dy, x * std::numbers::ln2); }, {}, kInF32},
    {U::kLog10,      kX, [](T dy, T x) { return div(dy, x * std::numbers::ln10); }, {}, kInF32},
    {U::kLog1p,      kX, [](T dy, T x) { return div(dy, x + 1.0); }, {}, kInF32},
    {U::kTan,        kY, [](T dy, T y) { return mul(dy, square(y) + 1.0); }, {}, kInF32},
    {U::kAsin,       kX, [](T dy, T x) { return mul(dy, rsqrt(1.0 - square(x))); }, {}, kInF32},
    {U::kAcos,       kX, [](T dy, T x) { return neg(mul(dy, rsqrt(1.0 - square(x)))); }, {}, kInF32},
    {U::kAtan,       kX, [](T dy, T x) { return div(dy, square(x) + 1.0); }},
    {U::kSinh,       kX, [](T dy, T x) { return mul(dy, cosh(x)); }, {}, kInF32},
    {U::kCosh,       kX, [](T dy, T x) { return mul(dy, sinh(x)); }, {}, kInF32},
    {U::kAsinh,      kX, [](T dy, T x) { return mul(dy, rsqrt(square(x) + 1.0)); }},
    {U::kAcosh,      kX, [](T dy, T x) { return mul(dy, rsqrt(square(x) - 1.0)); }},
    {U::kAtanh,      kX, [](T dy, T x) { return div(dy, 1.0 - square(x)); }},
    {U::kSoftplus,   kX, [](T dy, T x) { return mul(dy, sigmoid(x)); }, {}, kInF32},
    {U::kHardswish,  kX, [](T dy, T x) { return mul(dy, hardswish_slope(x)); }},
    {U::kGeluErf,   kX, [](T dy, T x) { return mul(dy, gelu_erf_slope(x)); }, B::kGeluErfGrad},
    {U::kGeluTanh,  kX, [](T dy, T x) { return mul(dy, gelu_tanh_slope(x)); }, B::kGeluTanhGrad},
};
// clang-format on

Tensor differentiable(UnaryOp op, const Tensor& input, std::string_view recorded_as) {
  const Derivative& d = *std::ranges::find(kDerivatives, op, &Derivative::op);
  const Tensor x = d.autocasting == kInF32 ? autocast_f32(input) : input;
  const Tensor y = compute(op, x);
  if (!is_observed(x)) return y;
  return record(recorded_as, {x}, y, {d.keeps == kX ? x : y}, [&d](const Backward& b) -> Tensors {
    const Tensor kept = b.saved(0);
    // Inside an Autocast a derivative made of exp or reciprocal comes out in f32.
    if (d.kernel && !b.create_graph()) return {compute_as(kept.dtype(), *d.kernel, kept, b.dy())};
    return {in_one_pass(
        kept, [&] { return cast(d.dx(raw::widened(b.dy()), raw::widened(kept)), kept.dtype()); })};
  });
}

Tensor differentiable(UnaryOp op, const Tensor& x) { return differentiable(op, x, name(op)); }

/// y = x > 0 ? x : bent(x), by a kernel with the parameter alpha. The gradient: dy where x > 0,
/// slope(x) dy elsewhere, in recorded ops.
template <class Slope>
Tensor bend(UnaryOp op, T x, double alpha, Slope slope) {
  return record(name(op), {x}, compute(op, x, alpha), {x}, [slope](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0), &dy = b.dy();
    return {in_one_pass(
        x, [&] { return cast(where(gt(x, scalar_like(x, 0)), dy, slope(x, dy)), x.dtype()); })};
  });
}

/// Gradient of maximum and minimum: dy to the operand that was taken, half of it to each of equals,
/// all of it to both where one is NaN.
Tensor extreme(BinaryOp kernel, T a, T b) {
  const auto share = [kernel](const Backward& g, bool of_first) {
    return in_one_pass(g.dy(), [&] {
      const Tensor a = g.saved(0), b = g.saved(1);
      const Tensor& dy = g.dy();
      const Tensor is_lost = of_first == (kernel == B::kMaximum) ? lt(a, b) : gt(a, b);
      return where(is_lost, scalar_like(dy, 0), where(eq(a, b), dy * 0.5, dy));
    });
  };
  return record_two(
      name(kernel), a, b, compute(kernel, a, b), {&a, &b},
      [=](const Backward& g) { return share(g, true); },
      [=](const Backward& g) { return share(g, false); });
}

bool is_same_place(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

/// x expanded to the target of an in-place op, after all that can be wrong with the two.
Tensor operand(std::string_view op, const Tensor& target, const Tensor& x) {
  WEFT_CHECK(target.defined() && x.defined(), "{}: undefined tensor", op);
  check_in_place(op, {target, x}, target);
  raw::check_operands(op, {target, x});
  WEFT_CHECK(broadcast_shapes(target.shape(), x.shape(), op) == target.shape(),
             "{}: {} does not broadcast to the target {}", op, x, target);
  WEFT_CHECK(!view::overlaps_itself(target),
             "{}: several elements of the target, {} with strides {}, share memory; clone() it "
             "first",
             op, target, target.strides());
  const Tensor expanded = view::expand(x, target.shape());
  WEFT_CHECK(is_same_place(expanded, target) || !view::share_elements(expanded, target),
             "{}: {} and the target, {}, share some of their elements; clone() one of them first",
             op, x, target);
  return expanded;
}

/// The same of an operation whose result the target's dtype must be able to hold.
Tensor kept_operand(std::string_view op, const Tensor& target, const Tensor& x) {
  const Tensor expanded = operand(op, target, x);
  WEFT_CHECK(is_floating(target.dtype()) || !is_floating(x.dtype()),
             "{}: the target, {}, would lose the fractions of {}", op, target, x);
  WEFT_CHECK(target.dtype() != DType::boolean || x.dtype() == DType::boolean,
             "{}: the target, {}, is a mask, and cannot hold numbers such as those of {}", op,
             target, x);
  return expanded;
}

void check_alpha(std::string_view op, const Tensor& a, const Tensor& b, double alpha) {
  WEFT_CHECK(
      alpha == 1 || is_floating(a.dtype()) || is_floating(b.dtype()) || alpha == std::trunc(alpha),
      "{}: expected a whole alpha beside integers, got {}", op, alpha);
}

/// Whether the result beside `other` may take the memory of `spent`: a temporary without history
/// that nothing else refers to, of the result's shape and dtype.
bool gives_memory(const Tensor& spent, const Tensor& other, std::optional<DType> result) {
  return spent.defined() && spent.is_unique() && spent.storage()->is_owner() && !spent.autograd() &&
         other.defined() && is_floating(spent.dtype()) && is_floating(other.dtype()) &&
         spent.is_contiguous() && spent.device() == other.device() &&
         (other.dim() == 0 || other.shape() == spent.shape()) &&
         result.value_or(promote(spent.dtype(), other.dtype())) == spent.dtype();
}

using Recorded = Tensor (*)(T a, T b, std::optional<DType> result);

/// a op b. A C++ expression keeps its temporaries to its end; giving their memory on, a chain of
/// operations stays in the caches that its longest part fits in. So does it keep the parameters of
/// functions that it calls, operators: they move theirs on to here.
Tensor combine(BinaryOp op, Recorded recorded, Tensor a, Tensor b,
               std::optional<DType> result = {}) {
  const bool in_a = gives_memory(a, b, result);
  const bool takes_memory = (in_a || gives_memory(b, a, result)) && !deferral_in_force;
  if (!takes_memory || is_recording({a, b})) return recorded(a, b, result);
  const Tensor y = in_a ? a : b;
  kernels::binary(
      {.op = op, .a = view::expand(a, y.shape()), .b = view::expand(b, y.shape()), .y = y});
  return y;
}

Tensor combine(BinaryOp op, Recorded recorded, Tensor a, double b) {
  const Tensor number = number_beside(a, b);
  const std::optional<DType> result = of_number(a);
  return combine(op, recorded, std::move(a), number, result);
}

Tensor combine(BinaryOp op, Recorded recorded, double a, Tensor b) {
  const Tensor number = number_beside(b, a);
  const std::optional<DType> result = of_number(b);
  return combine(op, recorded, number, std::move(b), result);
}

Tensor sum_of(T a, T b, std::optional<DType> result) { return add(a, b, 1, result); }

}  // namespace

Tensor add(T a, T b, double alpha) { return add(a, b, alpha, {}); }
Tensor sub(T a, T b) { return sub(a, b, {}); }
Tensor mul(T a, T b) { return mul(a, b, {}); }
Tensor div(T a, T b) { return div(a, b, {}); }
Tensor remainder(T a, T b) { return remainder(a, b, {}); }
Tensor pow(T a, T b) { return pow(a, b, {}); }
Tensor floor_divide(T a, T b) { return floor_divide(a, b, {}); }

Tensor add(const Tensor& a, const Tensor& b, double alpha, std::optional<DType> result) {
  check_alpha("add", a, b, alpha);
  Tensor y = compute(alpha == 1 ? B::kAdd : B::kAddScaled, a, b, alpha, result);
  return record_two(
      "add", a, b, y, {}, [](const Backward& g) { return g.dy(); },
      [alpha](const Backward& g) { return alpha == 1 ? g.dy() : g.dy() * alpha; });
}

Tensor sub(const Tensor& a, const Tensor& b, std::optional<DType> result) {
  WEFT_CHECK(
      !a.defined() || !b.defined() || a.dtype() != DType::boolean || b.dtype() != DType::boolean,
      "sub: {} and {} are masks: ne() tells where they differ, cast() makes numbers of them", a, b);
  return record_two(
      "sub", a, b, compute(B::kSub, a, b, 1, result), {}, [](const Backward& g) { return g.dy(); },
      [](const Backward& g) { return neg(g.dy()); });
}

// Beside 16 bits a number may be in f32. Its product with dy has dy's dtype all the same.
Tensor mul(const Tensor& a, const Tensor& b, std::optional<DType> result) {
  return record_two(
      "mul", a, b, compute(B::kMul, a, b, 1, result), {&a, &b},
      [](const Backward& g) { return mul(g.dy(), g.saved(1), g.dy().dtype()); },
      [](const Backward& g) { return mul(g.dy(), g.saved(0), g.dy().dtype()); });
}

Tensor div(const Tensor& first, const Tensor& second, std::optional<DType> result) {
  // Integers divide to f32, as Python's / does.
  const bool integers = !is_floating(first.dtype()) && !is_floating(second.dtype());
  const Tensor a = integers ? cast(first, DType::f32) : first;
  const Tensor b = integers ? cast(second, DType::f32) : second;
  return record_two(
      "div", a, b, compute(B::kDiv, a, b, 1, result), {&a, &b},
      [](const Backward& g) { return div(g.dy(), g.saved(1), g.dy().dtype()); },
      [](const Backward& g) {
        // In this order, PyTorch's, as dy / b may leave the range of what the product is in.
        return in_one_pass(g.dy(), [&] {
          const Tensor a = raw::widened(g.saved(0)), b = raw::widened(g.saved(1));
          return cast(neg(mul(g.dy(), div(div(a, b), b))), g.dy().dtype());
        });
      });
}

Tensor remainder(const Tensor& a, const Tensor& b, std::optional<DType> result) {
  return record_two(
      "remainder", a, b, compute(B::kRemainder, a, b, 1, result), {&a, &b},
      [](const Backward& g) { return g.dy(); },
      [](const Backward& g) { return neg(mul(g.dy(), floor_divide(g.saved(0), g.saved(1)))); });
}

Tensor atan2(const Tensor& first, const Tensor& second) {
  const bool integers = !is_floating(first.dtype()) && !is_floating(second.dtype());
  const Tensor a = integers ? cast(first, DType::f32) : first;
  const Tensor b = integers ? cast(second, DType::f32) : second;
  const auto over_squares = [](const Backward& g, int factor) {
    return in_one_pass(g.dy(), [&] {
      const Tensor a = raw::widened(g.saved(0)), b = raw::widened(g.saved(1));
      const Tensor zero = scalar_like(a, 0), is_origin = logical_and(eq(a, zero), eq(b, zero));
      const Tensor slope = mul(div(g.dy(), add(square(a), square(b))), factor == 0 ? a : b);
      return cast(where(is_origin, zero, slope), g.dy().dtype());
    });
  };
  return record_two(
      "atan2", a, b, compute(B::kAtan2, a, b), {&a, &b},
      [=](const Backward& g) { return over_squares(g, 1); },
      [=](const Backward& g) { return neg(over_squares(g, 0)); });
}

Tensor pow(const Tensor& first, const Tensor& second, std::optional<DType> result) {
  const Tensor a = autocast_f32(first), b = autocast_f32(second);
  const bool as_it_comes = a.is_same(first) && b.is_same(second);
  const Tensor y = compute(B::kPow, a, b, 1, as_it_comes ? result : std::nullopt);
  return record_two(
      "pow", a, b, y, {&a, &b, &y},
      [](const Backward& g) {  // b a^(b-1), which is 0 for b = 0 also at a = 0
        return in_one_pass(g.dy(), [&] {
          const Tensor a = g.saved(0), b = g.saved(1), slope = mul(b, pow(a, b - 1.0));
          return mul(g.dy(), where(eq(b, scalar_like(b, 0)), scalar_like(slope, 0), slope));
        });
      },
      [](const Backward& g) {  // y log a, which is 0 where a = 0 and b >= 0
        return in_one_pass(g.dy(), [&] {
          const Tensor a = g.saved(0), b = g.saved(1), y = g.saved(2);
          const Tensor at_zero = logical_and(eq(a, scalar_like(a, 0)), ge(b, scalar_like(b, 0)));
          return mul(g.dy(), where(at_zero, scalar_like(y, 0), mul(y, log(cast(a, y.dtype())))));
        });
      });
}

Tensor maximum(const Tensor& a, const Tensor& b) { return extreme(B::kMaximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return extreme(B::kMinimum, a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  raw::check_operands("where", {condition, a, b});
  WEFT_CHECK(condition.dtype() == DType::boolean, "where: the condition must be bool, got {}",
             condition);
  const Shape shape =
      broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  const DType dtype = promote(a.dtype(), b.dtype());
  const Tensor x = cast(a, dtype), z = cast(b, dtype);
  Tensor y;
  if (is_deferred(shape)) [[unlikely]] {
    y = defer({.op = kernels::MoveOp::kWhere, .dtype = dtype}, {condition, x, z}, shape);
  } else {
    y = Tensor::empty(shape, dtype, a.device());
    kernels::where({.condition = view::expand(condition, shape),
                    .a = view::expand(x, shape),
                    .b = view::expand(z, shape),
                    .y = y});
  }
  return record("where", {x, z}, y, {condition},
                [ma = Meta(x), mb = Meta(z)](const Backward& g) -> Tensors {
                  const Tensor condition = g.saved(0), zero = scalar_like(g.dy(), 0);
                  return {g.needs(0) ? ma.fit(where(condition, g.dy(), zero)) : Tensor(),
                          g.needs(1) ? mb.fit(where(condition, zero, g.dy())) : Tensor()};
                });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  WEFT_CHECK(mask.defined() && mask.dtype() == DType::boolean,
             "masked_fill: the mask must be bool, got {}", mask);
  return where(mask, full({}, value, x.dtype(), x.device()), x);
}

Tensor neg(const Tensor& x) { return differentiable(U::kNeg, x); }
Tensor abs(const Tensor& x) { return differentiable(U::kAbs, x); }
Tensor exp(const Tensor& x) { return differentiable(U::kExp, x); }
Tensor exp2(const Tensor& x) { return differentiable(U::kExp2, x); }
Tensor expm1(const Tensor& x) { return differentiable(U::kExpm1, x); }
Tensor log(const Tensor& x) { return differentiable(U::kLog, x); }
Tensor log2(const Tensor& x) { return differentiable(U::kLog2, x); }
Tensor log10(const Tensor& x) { return differentiable(U::kLog10, x); }
Tensor log1p(const Tensor& x) { return differentiable(U::kLog1p, x); }
Tensor sqrt(const Tensor& x) { return differentiable(U::kSqrt, x); }
Tensor rsqrt(const Tensor& x) { return differentiable(U::kRsqrt, x); }
Tensor reciprocal(const Tensor& x) { return differentiable(U::kReciprocal, x); }
Tensor square(const Tensor& x) { return differentiable(U::kSquare, x); }
Tensor sin(const Tensor& x) { return differentiable(U::kSin, x); }
Tensor cos(const Tensor& x) { return differentiable(U::kCos, x); }
Tensor erf(const Tensor& x) { return differentiable(U::kErf, x); }
Tensor tan(const Tensor& x) { return differentiable(U::kTan, x); }
Tensor asin(const Tensor& x) { return differentiable(U::kAsin, x); }
Tensor acos(const Tensor& x) { return differentiable(U::kAcos, x); }
Tensor atan(const Tensor& x) { return differentiable(U::kAtan, x); }
Tensor sinh(const Tensor& x) { return differentiable(U::kSinh, x); }
Tensor cosh(const Tensor& x) { return differentiable(U::kCosh, x); }
Tensor asinh(const Tensor& x) { return differentiable(U::kAsinh, x); }
Tensor acosh(const Tensor& x) { return differentiable(U::kAcosh, x); }
Tensor atanh(const Tensor& x) { return differentiable(U::kAtanh, x); }
Tensor tanh(const Tensor& x) { return differentiable(U::kTanh, x); }
Tensor sigmoid(const Tensor& x) { return differentiable(U::kSigmoid, x); }
Tensor relu(const Tensor& x) { return differentiable(U::kRelu, x); }
Tensor silu(const Tensor& x) { return differentiable(U::kSilu, x); }
Tensor hardswish(const Tensor& x) { return differentiable(U::kHardswish, x); }

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  return bend(U::kLeakyRelu, x, negative_slope, [=](T, T dy) { return dy * negative_slope; });
}

Tensor elu(const Tensor& x, double alpha) {
  // Where x > 0 the slope is not looked at, and must not overflow.
  return bend(U::kElu, x, alpha, [=](T x, T dy) {
    return mul(dy, exp(clamp(x, -std::numeric_limits<double>::infinity(), 0)) * alpha);
  });
}

Tensor softplus(const Tensor& input, double beta, double threshold) {
  const Tensor x = autocast_f32(input), scaled = beta == 1 ? x : x * beta;
  const Tensor y = differentiable(U::kSoftplus, scaled);
  const Tensor curve = beta == 1 ? y : y / beta;
  // Beyond 17 the two are the same number in f32, but where beta x leaves the dtype's range.
  if (beta == 1 && threshold >= 17 && x.dtype() != DType::f64) return curve;
  return where(gt(scaled, scalar_like(scaled, threshold)), x, curve);
}

Tensor gelu(const Tensor& x, Gelu form) {
  return differentiable(form == Gelu::kErf ? U::kGeluErf : U::kGeluTanh, x, "gelu");
}

Tensor clamp(const Tensor& x, double low, double high) {
  WEFT_CHECK(low <= high, "clamp: low {} is above high {}", low, high);
  // Integers stay what they are between whole numbers, or the nearest to these that they have.
  const bool is_whole = low == std::trunc(low) && high == std::trunc(high);
  const DType dtype = is_floating(x.dtype()) || is_whole ? x.dtype() : DType::f32;
  const auto number = [&](double bound) { return full({}, bound, dtype, x.device()); };
  Tensor y;
  {
    NoGrad guard;
    y = in_one_pass(x, [&] { return minimum(maximum(x, number(low)), number(high)); });
  }
  return record("clamp", {x}, y, {x}, [low, high](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0);
    return {in_one_pass(x, [&] {
      // At a bound itself, too, the slope is 0. What is infinite is none.
      const Tensor above =
          std::isinf(low) ? ge(x, scalar_like(x, low)) : gt(x, scalar_like(x, low));
      const Tensor below =
          std::isinf(high) ? le(x, scalar_like(x, high)) : lt(x, scalar_like(x, high));
      const Tensor inside = logical_and(above, below);
      return where(inside, b.dy(), scalar_like(b.dy(), 0));
    })};
  });
}

Tensor eq(const Tensor& a, const Tensor& b) { return compute(B::kEq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compute(B::kNe, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compute(B::kLt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compute(B::kLe, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compute(B::kGt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compute(B::kGe, a, b); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return compute(B::kLogicalAnd, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return compute(B::kLogicalOr, a, b); }
Tensor floor_divide(const Tensor& a, const Tensor& b, std::optional<DType> result) {
  return compute(B::kFloorDivide, a, b, 1, result);
}
Tensor logical_not(const Tensor& x) { return compute(U::kLogicalNot, x); }
Tensor is_nan(const Tensor& x) { return compute(U::kIsNan, x); }
Tensor isinf(const Tensor& x) { return compute(U::kIsInf, x); }
Tensor isfinite(const Tensor& x) { return compute(U::kIsFinite, x); }
Tensor sign(const Tensor& x) { return compute(U::kSign, x); }
Tensor floor(const Tensor& x) { return compute(U::kFloor, x); }
Tensor ceil(const Tensor& x) { return compute(U::kCeil, x); }
Tensor round(const Tensor& x) { return compute(U::kRound, x); }
Tensor trunc(const Tensor& x) { return compute(U::kTrunc, x); }

Tensor& add_(Tensor& target, const Tensor& x, double alpha) {
  const Tensor b = kept_operand("add_", target, x);
  check_alpha("add_", target, x, alpha);
  kernels::binary({.op = B::kAddScaled, .a = target, .b = b, .y = target, .alpha = alpha});
  record_in_place("add_", {target, x}, target, {},
                  [m = Meta(x), alpha](const Backward& b) -> Tensors {
                    return {b.dy(), b.needs(1) ? m.fit(b.dy() * alpha) : Tensor()};
                  });
  return target;
}

Tensor& mul_(Tensor& target, const Tensor& factor) {
  const Tensor b = kept_operand("mul_", target, factor);
  // The old value is needed for the factor's gradient only; the factor's own, where it goes too.
  const Tensor old = is_recording({factor}) ? clone(target) : Tensor();
  const Tensor x = is_same_place(b, target) ? clone(factor) : factor;
  kernels::binary({.op = B::kMul, .a = target, .b = b, .y = target});
  record_in_place("mul_", {target, x}, target, {x, old},
                  [m = Meta(x)](const Backward& b) -> Tensors {
                    return {mul(b.dy(), b.saved(0), b.dy().dtype()),
                            b.needs(1) ? m.fit(mul(b.dy(), b.saved(1))) : Tensor()};
                  });
  return target;
}

Tensor& fill_(Tensor& target, double value) {
  check_in_place("fill_", {target}, target);
  kernels::fill({.y = target, .value = value});
  record_in_place("fill_", {target}, target, {},
                  [](const Backward&) -> Tensors { return {Tensor()}; });
  return target;
}

Tensor& zero_(Tensor& target) { return fill_(target, 0); }

Tensor& copy_(Tensor& target, const Tensor& x) {
  raw::copy(operand("copy_", target, x), target);
  record_in_place("copy_", {target, x}, target, {}, [m = Meta(x)](const Backward& b) -> Tensors {
    return {Tensor(), b.needs(1) ? m.fit(b.dy()) : Tensor()};
  });
  return target;
}

}  // namespace ops

using ops::B, ops::combine, ops::sum_of;

Tensor operator+(Tensor a, Tensor b) {
  return combine(B::kAdd, sum_of, std::move(a), std::move(b));
}
Tensor operator-(Tensor a, Tensor b) {
  return combine(B::kSub, ops::sub, std::move(a), std::move(b));
}
Tensor operator*(Tensor a, Tensor b) {
  return combine(B::kMul, ops::mul, std::move(a), std::move(b));
}
Tensor operator/(Tensor a, Tensor b) {
  return combine(B::kDiv, ops::div, std::move(a), std::move(b));
}

Tensor operator+(Tensor a, double b) { return combine(B::kAdd, sum_of, std::move(a), b); }
Tensor operator-(Tensor a, double b) { return combine(B::kSub, ops::sub, std::move(a), b); }
Tensor operator*(Tensor a, double b) { return combine(B::kMul, ops::mul, std::move(a), b); }
Tensor operator/(Tensor a, double b) { return combine(B::kDiv, ops::div, std::move(a), b); }

Tensor operator+(double a, Tensor b) { return combine(B::kAdd, sum_of, a, std::move(b)); }
Tensor operator-(double a, Tensor b) { return combine(B::kSub, ops::sub, a, std::move(b)); }
Tensor operator*(double a, Tensor b) { return combine(B::kMul, ops::mul, a, std::move(b)); }
Tensor operator/(double a, Tensor b) { return combine(B::kDiv, ops::div, a, std::move(b)); }

}  // namespace weft
