// Reductions. Kernels keep reduced dimensions with size 1; keepdim = false drops them afterwards.
#include "kernels/reduce/reduce.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/deferral.h"
#include "autograd/fused.h"
#include "autograd/ops.h"
#include "autograd/ops/recording.h"
#include "autograd/raw.h"
#include "core/view.h"

namespace weft::ops {
namespace {

using kernels::Reduction;

/// A set of dimensions and the shapes it leads to.
struct Axes {
  Shape kept;         // size 1 where reduced
  Shape dropped;      // reduced dimensions gone
  int64_t count = 1;  // elements per result

  Axes(const Tensor& x, const Shape& dims, std::string_view op) : kept(x.shape()) {
    bool reduced[kMaxDims] = {};
    for (int i = 0; i < x.dim(); ++i) reduced[i] = dims.empty();
    for (int64_t dim : dims) {
      const int d = wrap_dim(dim, x.dim(), op);
      WEFT_CHECK(!reduced[d], "{}: dimension {} is named twice in {}", op, d, dims);
      reduced[d] = true;
    }
    for (int i = 0; i < x.dim(); ++i) {
      if (reduced[i]) {
        count *= x.shape()[i];
        kept[i] = 1;
      } else {
        dropped.push_back(x.shape()[i]);
      }
    }
  }

  const Shape& result(bool keepdim) const { return keepdim ? kept : dropped; }
};

Tensor compute(const Tensor& x, const Axes& axes, Reduction reduction, DType dtype, bool keepdim,
               double correction = 0) {
  x.raw();  // a deferred result is computed by all threads, not by the first that reads it
  Tensor y = Tensor::empty(axes.kept, dtype, x.device());
  kernels::reduce({.x = x, .y = y, .reduction = reduction, .correction = correction});
  return keepdim ? y : view::reshape(y, axes.dropped);
}

/// The dimensions that were reduced, or had size 1, of which `kept` has one element each.
Shape reduced(const Shape& kept) {
  Shape dims;
  for (int i = 0; i < kept.size(); ++i) {
    if (kept[i] == 1) dims.push_back(i);
  }
  return dims;
}

DType sum_dtype(const Tensor& x) { return is_floating(x.dtype()) ? x.dtype() : DType::i64; }

/// Gradient of max and min: dy to the elements equal to the result, shared among equals.
Tensor extreme(const Tensor& input, const Shape& dims, bool keepdim, Reduction reduction) {
  const std::string_view op = name(reduction);
  const Axes axes(input, dims, op);
  WEFT_CHECK(axes.count > 0, "{}: expected at least one element to reduce, got {}", op, input);
  Tensor y = compute(input, axes, reduction, input.dtype(), keepdim);
  return record(op, {input}, y, {input, y}, [kept = axes.kept](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0), y = view(b.saved(1), kept);
    const Tensor hits = cast(sum(eq(x, y), reduced(kept), true), raw::widened(x.dtype()));
    const Tensor shared = cast(div(view(b.dy(), kept), hits), x.dtype());
    return {in_one_pass(x, [&] { return mul(cast(eq(x, y), x.dtype()), shared); })};
  });
}

/// sum^(1 / p) of sums that are not negative, with the gradient 0 where the sum is 0, as it is for
/// a p < 0 where every element is infinite.
Tensor root(const Tensor& sum, double p) {
  const Tensor zero = full({}, 0, sum.dtype(), sum.device());
  const Tensor is_zero = eq(sum, zero), positive = masked_fill(sum, is_zero, 1);
  const Tensor one_over_p = full({}, 1 / p, sum.dtype(), sum.device());
  return masked_fill(p == 2 ? sqrt(positive) : pow(positive, one_over_p), is_zero,
                     p < 0 ? HUGE_VAL : 0);
}

Tensor arg_extreme(const Tensor& x, int64_t dim, bool keepdim, Reduction reduction) {
  const Axes axes(x, {wrap_dim(dim, x.dim(), name(reduction))}, name(reduction));
  WEFT_CHECK(axes.count > 0, "{}: expected at least one element to reduce, got {}", name(reduction),
             x);
  return compute(x, axes, reduction, DType::i64, keepdim);
}

}  // namespace

Tensor sum(const Tensor& input, const Shape& dims, bool keepdim) {
  const Tensor x = autocast_f32(input);
  const Axes axes(x, dims, "sum");
  Tensor y = compute(x, axes, Reduction::kSum, sum_dtype(x), keepdim);
  if (!is_observed(x)) return y;
  return record("sum", {x}, y, {},
                [kept = axes.kept, shape = x.shape()](const Backward& b) -> Tensors {
                  return {expand(reshape(b.dy(), kept), shape)};
                });
}

namespace {

Tensor mean_as(DType dtype, const Tensor& x, const Shape& dims, bool keepdim) {
  const Axes axes(x, dims, "mean");
  Tensor y = compute(x, axes, Reduction::kMean, dtype, keepdim);
  const double scale = 1.0 / static_cast<double>(axes.count);
  return record("mean", {x}, y, {},
                [=, kept = axes.kept, shape = x.shape()](const Backward& b) -> Tensors {
                  const DType dtype = b.dy().dtype();
                  const Tensor share = cast(cast(b.dy(), raw::widened(dtype)) * scale, dtype);
                  return {expand(reshape(share, kept), shape)};
                });
}

}  // namespace

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  raw::check_floating("mean", x);
  return mean_as(x.dtype(), x, dims, keepdim);
}

namespace {

/// At each element the product of the others that are reduced with it, from ops which can be
/// differentiated again: the rows of a matrix of them that has 1 on its diagonal.
Tensor product_of_others(const Tensor& x, const Shape& kept) {
  // The dimensions that are reduced last, as one.
  Shape order, shape;
  int64_t count = 1;
  for (int i = 0; i < x.dim(); ++i) {
    if (kept[i] == x.size(i)) order.push_back(i), shape.push_back(x.size(i));
  }
  for (int i = 0; i < x.dim(); ++i) {
    if (kept[i] != x.size(i)) order.push_back(i), count *= x.size(i);
  }
  Shape back = order;
  for (int i = 0; i < order.size(); ++i) back[static_cast<int>(order[i])] = i;
  const Tensor ordered = permute(x, order);
  shape.push_back(count);
  const Tensor rows = unsqueeze(reshape(ordered, shape), -2);
  shape.push_back(count);
  const Tensor places = to(arange(0, count), x.device());
  const Tensor own = eq(unsqueeze(places, 1), places);
  const Tensor others = prod(where(own, ops::full({}, 1, x.dtype(), x.device()), rows), {-1});
  return permute(reshape(others, ordered.shape()), back);
}

}  // namespace

Tensor prod(const Tensor& input, const Shape& dims, bool keepdim) {
  const Tensor x = autocast_f32(input);
  const Axes axes(x, dims, "prod");
  Tensor y = compute(x, axes, Reduction::kProd, sum_dtype(x), keepdim);
  return record("prod", {x}, y, {x, y}, [kept = axes.kept](const Backward& b) -> Tensors {
    // dy * (product of the others). Without zeros that is y / x; with one zero only its own place
    // gets the product of the rest; with two every place gets 0.
    const Tensor x = b.saved(0);
    // The formula with divisions takes what it does at zeros for constant.
    if (b.create_graph()) return {mul(view(b.dy(), kept), product_of_others(x, kept))};
    const Tensor zero = ops::full({}, 0, x.dtype(), x.device());
    Tensor zeros, rest;
    {
      const Tensor is_zero = eq(x, zero);
      zeros = sum(is_zero, reduced(kept), true);
      rest = prod(masked_fill(x, is_zero, 1), reduced(kept), true);
    }
    return {in_one_pass(x, [&] {
      const Tensor none = eq(zeros, full_like(zeros, 0)), one = eq(zeros, full_like(zeros, 1));
      const Tensor at_zero = mul(rest, cast(eq(x, zero), x.dtype()));
      return mul(view(b.dy(), kept), where(none, div(rest, x), where(one, at_zero, zero)));
    })};
  });
}

Tensor max(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(x, dims, keepdim, Reduction::kMax);
}

Tensor min(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(x, dims, keepdim, Reduction::kMin);
}

namespace {

Tensor variance(const Tensor& x, const Shape& dims, double correction, bool keepdim, DType dtype) {
  const Axes axes(x, dims, "var");
  Tensor y = compute(x, axes, Reduction::kVar, dtype, keepdim, correction);
  const double scale = 2.0 / std::max(0.0, static_cast<double>(axes.count) - correction);
  return record("var", {x}, y, {x}, [=, kept = axes.kept](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0);
    // Rounded to 16 bits the mean would move by as much as the elements differ.
    const Tensor centre = mean_as(raw::widened(x.dtype()), x, reduced(kept), true);
    const Tensor dy = cast(b.dy(), promote(b.dy().dtype(), raw::widened(x.dtype())));
    const Tensor slope = reshape(cast(dy * scale, centre.dtype()), kept);
    return {in_one_pass(x, [&] { return cast(mul(sub(x, centre), slope), x.dtype()); })};
  });
}

}  // namespace

Tensor var(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  raw::check_floating("var", x);
  return variance(x, dims, correction, keepdim, x.dtype());
}

Tensor std(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  raw::check_floating("std", x);
  // What is a square may be beyond f32, or below it.
  return cast(root(variance(x, dims, correction, keepdim, DType::f64), 2), x.dtype());
}

namespace {

/// The norm of order 2, in one pass over x, whose squares may be beyond f32. Its gradient where it
/// is 0 is 0.
Tensor length(const Tensor& x, const Shape& dims, bool keepdim) {
  const Axes axes(x, dims, "norm");
  Tensor y;
  {
    const NoGrad guard;
    y = cast(sqrt(compute(x, axes, Reduction::kSumSquares, DType::f64, keepdim)), x.dtype());
  }
  return record("norm", {x}, y, {x, y}, [kept = axes.kept](const Backward& b) -> Tensors {
    const Tensor x = b.saved(0), y = view(b.saved(1), kept), is_zero = eq(y, full_like(y, 0));
    const Tensor divisor = masked_fill(y, is_zero, 1);
    const Tensor dy = masked_fill(view(b.dy(), kept), is_zero, 0);
    // Not dy / y first, which may leave f32's range.
    return {in_one_pass(x, [&] { return mul(div(x, divisor), dy); })};
  });
}

}  // namespace

Tensor norm(const Tensor& input, double p, const Shape& dims, bool keepdim) {
  raw::check_floating("norm", input);
  const Tensor given = autocast_f32(input);
  const DType dtype = given.dtype();
  const Tensor x = raw::widened(given);
  if (p == 2) return cast(length(x, dims, keepdim), dtype);
  const Tensor size = abs(x);
  Tensor y;
  if (p == 0) {
    y = cast(sum(ne(x, full({}, 0, x.dtype(), x.device())), dims, keepdim), x.dtype());
  } else if (p == 1) {
    y = sum(size, dims, keepdim);
  } else if (std::isinf(p)) {
    y = p > 0 ? max(size, dims, keepdim) : min(size, dims, keepdim);
  } else {
    const Tensor exponent = full({}, p, x.dtype(), x.device());
    Tensor powers;
    if (p > 1) {
      powers = pow(size, exponent);
    } else {
      // The slope at 0 is infinite. Its gradient is 0, as that of any norm there.
      const Tensor is_zero = eq(size, full_like(exponent, 0));
      powers =
          masked_fill(pow(masked_fill(size, is_zero, 1), exponent), is_zero, p > 0 ? 0 : HUGE_VAL);
    }
    y = root(sum(powers, dims, keepdim), p);
  }
  return cast(y, dtype);
}

Tensor logsumexp(const Tensor& input, const Shape& dims, bool keepdim) {
  raw::check_floating("logsumexp", input);
  const Tensor x = autocast_f32(input);
  const Axes axes(x, dims, "logsumexp");
  if (axes.count == 0) return log(sum(exp(x), dims, keepdim));
  Tensor shift;  // a constant: it cancels
  {
    const NoGrad guard;
    shift = max(detach(x), dims, true);
    shift = cast(masked_fill(shift, isinf(shift), 0), raw::widened(x.dtype()));
  }
  const auto exponentials = [](const Tensors& t) {
    return exp(sub(cast(t[0], t[1].dtype()), t[1]));
  };
  const Tensor rest = log(sum(fused(exponentials, {x, shift}), dims, keepdim));
  return cast(add(rest, reshape(shift, axes.result(keepdim))), x.dtype());
}

Tensor trace(const Tensor& x) {
  WEFT_CHECK(x.dim() == 2, "trace: expected a matrix, got {}", x);
  return cast(sum(diagonal(x)), sum_dtype(x));  // an Autocast does not widen it
}

Tensor any(const Tensor& x, const Shape& dims, bool keepdim) {
  return compute(x, Axes(x, dims, "any"), Reduction::kAny, DType::boolean, keepdim);
}

Tensor all(const Tensor& x, const Shape& dims, bool keepdim) {
  return compute(x, Axes(x, dims, "all"), Reduction::kAll, DType::boolean, keepdim);
}

Tensor argmax(const Tensor& x, int64_t dim, bool keepdim) {
  return arg_extreme(x, dim, keepdim, Reduction::kArgmax);
}

Tensor argmin(const Tensor& x, int64_t dim, bool keepdim) {
  return arg_extreme(x, dim, keepdim, Reduction::kArgmin);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.dim() - shape.size();
  Shape dims;
  for (int i = 0; i < x.dim(); ++i) {
    if (i < extra || (shape[i - extra] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  }
  return dims.empty() ? reshape(x, shape) : reshape(sum(x, dims, true), shape);
}

}  // namespace weft::ops
