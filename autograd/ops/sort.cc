// Sorting, what follows from it, and running sums.
#include "kernels/sort/sort.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/index/index.h"
#include "kernels/scan/scan.h"

namespace weft::ops {
namespace {

/// The first `count` of each line's order, and their places. A number counts as a line of one.
std::pair<Tensor, Tensor> first_of_order(std::string_view op, const Tensor& x, int64_t dim,
                                         std::optional<int64_t> count, bool descending) {
  WEFT_CHECK(x.defined(), "{}: undefined tensor", op);
  const int axis = wrap_dim(dim, std::max(x.dim(), 1), op);
  const Tensor line = x.dim() == 0 ? reshape(x, {1}) : x;
  Shape shape = line.shape();
  WEFT_CHECK(!count || (*count >= 0 && *count <= shape[axis]),
             "{}: expected between 0 and {} elements of dimension {} of {}, got {}", op,
             shape[axis], axis, x, *count);
  if (count) shape[axis] = *count;
  const Shape wanted = x.dim() == 0 && shape[0] == 1 ? Shape{} : shape;
  const Tensor values = Tensor::empty(shape, x.dtype(), x.device());
  const Tensor places = Tensor::empty(shape, DType::i64, x.device());
  kernels::sort(
      {.x = line, .values = values, .places = places, .axis = axis, .descending = descending});
  const Tensor result = record(
      op, {line}, values, {places}, [axis, whole = line.shape()](const Backward& b) -> Tensors {
        const Tensor zero = full({}, 0, b.dy().dtype(), b.dy().device());
        return {scatter_add(view::expand(zero, whole), axis, b.saved(0), b.dy())};
      });
  return {reshape(result, wanted), view::reshape(places, wanted)};
}

Tensor running_sum(const Tensor& x, int axis, bool reverse) {
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::i64;
  const Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  kernels::scan({.x = x, .y = y, .axis = axis, .reverse = reverse});
  return record("cumsum", {x}, y, {}, [=](const Backward& b) -> Tensors {
    return {running_sum(b.dy(), axis, !reverse)};
  });
}

struct Order {
  Tensor ordered;  // the slices
  Tensor places;   // i64: where each was
};

/// Slices along the first dimension in the order of their first elements, then the second ones, ...
Order order_of(const Tensor& slices) {
  if (slices.dim() == 1) {
    const auto [values, places] = sort(slices);
    return {values, places};
  }
  const int64_t count = slices.size(0);
  const Tensor rows = reshape(slices, {count, numel(slices.shape()) / std::max<int64_t>(count, 1)});
  // The sort is stable: by the last elements first.
  Tensor places = arange(0, count);
  places = to(places, slices.device());
  for (int64_t i = rows.size(1) - 1; i >= 0; --i) {
    const Tensor keys = index_select(select(rows, 1, i), 0, places);
    places = index_select(places, 0, argsort(keys));
  }
  return {index_select(slices, 0, places), places};
}

/// x with one dimension elsewhere, the others in their order.
Tensor with_dim_at(const Tensor& x, int from, int to) {
  Shape order;
  for (int d = 0; d < x.dim(); ++d) {
    if (d != from) order.push_back(d);
  }
  order.insert(to, from);
  return permute(x, order);
}

}  // namespace

std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending) {
  return first_of_order("sort", x, dim, {}, descending);
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  const NoGrad guard;
  return first_of_order("argsort", x, dim, {}, descending).second;
}

std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  return first_of_order("topk", x, dim, k, largest);
}

Tensors unique(const Tensor& x, bool return_inverse, bool return_counts,
               std::optional<int64_t> dim) {
  const NoGrad guard;
  WEFT_CHECK(x.defined(), "unique: undefined tensor");
  const int axis = dim ? wrap_dim(*dim, std::max(x.dim(), 1), "unique") : 0;
  const Tensor slices = !dim || x.dim() == 0 ? reshape(x, {-1}) : with_dim_at(x, axis, 0);
  const Order found = order_of(slices);
  const Tensor& order = found.places;
  const int64_t count = slices.size(0);
  // One is new where it differs from the one before it.
  Tensor is_new = full({count}, 1, DType::boolean, x.device());
  if (count > 1) {
    const Tensor differs =
        ne(slice(found.ordered, 0, 1, count), slice(found.ordered, 0, 0, count - 1));
    raw::copy(differs.dim() == 1 ? differs : any(flatten(differs, 1), {1}),
              view::slice(is_new, 0, 1, count));
  }
  const Tensor firsts = reshape(nonzero(is_new), {-1});
  const Tensor values = index_select(found.ordered, 0, firsts);
  Tensors results = {dim && x.dim() > 0 ? contiguous(with_dim_at(values, 0, axis)) : values};
  if (return_inverse) {
    const Tensor rank = sub(cumsum(is_new, 0), full({}, 1, DType::i64, x.device()));
    const Tensor inverse = Tensor::empty({count}, DType::i64, x.device());
    kernels::index({.kind = kernels::IndexKind::kScatter, .x = rank, .index = order, .y = inverse});
    results.push_back(dim ? inverse : view::reshape(inverse, x.shape()));
  }
  if (return_counts) {
    const Tensor end = full({1}, static_cast<double>(count), DType::i64, x.device());
    const Tensor ends = slice(cat({firsts, end}, 0), 0, 1, firsts.numel() + 1);
    results.push_back(sub(ends, firsts));
  }
  return results;
}

Tensor cumsum(const Tensor& input, int64_t dim) {
  WEFT_CHECK(input.defined(), "cumsum: undefined tensor");
  const Tensor x = autocast_f32(input);
  const int axis = wrap_dim(dim, std::max(x.dim(), 1), "cumsum");
  return reshape(running_sum(x.dim() == 0 ? reshape(x, {1}) : x, axis, false), x.shape());
}

}  // namespace weft::ops
