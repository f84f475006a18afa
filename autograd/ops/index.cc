// Lookup by index. The indices are checked by the kernel before anything is written.
#include "kernels/index/index.h"

#include <numeric>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"

namespace weft::ops {
namespace {

using kernels::IndexKind;

void check_index(std::string_view op, const Tensor& index) {
  WEFT_CHECK(index.defined() && (index.dtype() == DType::i64 || index.dtype() == DType::i32),
             "{}: indices must be i64 or i32, got {}", op, index);
}

/// source added into zeros of x's shape: the gradient of reading x by index.
Tensor spread(const Tensor& dy, const Tensor& index, const Shape& shape, int axis, IndexKind kind) {
  Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
  kernels::index({.kind = kind, .x = dy, .index = index, .y = dx, .axis = axis});
  return record("spread", {dy}, dx, {index}, [axis, kind](const Backward& b) -> Tensors {
    const Tensor index = b.saved(0);
    return {kind == IndexKind::kAdd ? index_select(b.dy(), axis, index)
                                    : gather(b.dy(), axis, index)};
  });
}

void check_gather(std::string_view op, const Tensor& x, int axis, const Tensor& index,
                  const Tensor& values) {
  check_index(op, index);
  raw::check_operands(op, {x, index, values});
  WEFT_CHECK(index.dim() == x.dim() && index.shape() == values.shape(),
             "{}: index {} must have the dimensions of {} and the shape of {}", op, index, x,
             values);
  for (int d = 0; d < x.dim(); ++d) {
    WEFT_CHECK(d == axis || index.shape()[d] <= x.shape()[d],
               "{}: index {} is larger than {} in dimension {}", op, index, x, d);
  }
}

/// x with the indexed dimensions in front, as rows of what the others hold, and which rows an index
/// per dimension means.
class Rows {
 public:
  Rows(std::string_view op, const Tensor& x, const Tensors& indices) {
    if (indices.size() == 1 && indices[0].defined() && indices[0].dtype() == DType::boolean) {
      take_mask(op, x, indices[0]);
      return;
    }
    Tensors places = without_masks(op, x, indices);
    int last = -1;
    bool are_neighbours = true;
    for (int d = 0; d < x.dim(); ++d) {
      if (!places[d].defined()) continue;
      shape_ = broadcast_shapes(shape_, places[d].shape(), op);
      if (last < 0) first_ = d;
      are_neighbours = are_neighbours && (last < 0 || last == d - 1);
      last = d;
      order_.push_back(d);
    }
    WEFT_CHECK(last >= 0, "{}: expected an index for at least one dimension of {}", op, x);
    if (!are_neighbours) first_ = 0;
    const int indexed = order_.size();
    for (int d = 0; d < x.dim(); ++d) {
      if (!places[d].defined()) order_.push_back(d);
    }
    for (int i = 0; i < x.dim(); ++i) {
      permuted_.push_back(x.shape()[order_[i]]);
      (i < indexed ? rows_ : width_) *= permuted_[i];
      if (i >= indexed) kept_.push_back(permuted_[i]);
    }
    // An index outside its dimension could mean another row: each is looked at, on the host.
    std::vector<int64_t> numbers(numel(shape_));
    for (int i = 0; i < indexed; ++i) {
      const Tensor on_host = raw::contiguous(to(places[order_[i]], Device{}), DType::i64);
      const Tensor index = view::expand(on_host, shape_);
      const int64_t size = permuted_[i];
      auto number = numbers.begin();
      for_each_offset(shape_, index.strides(), [&](int64_t offset) {
        const int64_t k = index.data<int64_t>()[offset];
        WEFT_CHECK(k >= -size && k < size, "{}: index {} is outside dimension {} of {}", op, k,
                   order_[i], x);
        *number = *number * size + (k < 0 ? k + size : k);
        ++number;
      });
    }
    numbers_ = to(Tensor::from(numbers, {static_cast<int64_t>(numbers.size())}), x.device());
  }

  const Tensor& numbers() const { return numbers_; }  // i64 [n], of the rows meant
  Shape shape() const { return {numbers_.numel(), width_}; }

  Tensor of(const Tensor& x) const { return reshape(permute(x, order_), {rows_, width_}); }
  /// Rows of all of x back in its shape.
  Tensor as_whole(const Tensor& rows) const {
    Shape inverse = order_;
    for (int i = 0; i < order_.size(); ++i) inverse[order_[i]] = i;
    return permute(reshape(rows, permuted_), inverse);
  }
  /// The shape of x[indices].
  Shape result() const {
    Shape shape = kept_;
    for (int i = shape_.size() - 1; i >= 0; --i) shape.insert(first_, shape_[i]);
    return shape;
  }
  /// The rows meant, as x[indices].
  Tensor as_result(const Tensor& rows) const {
    Shape shape = shape_;
    for (int64_t size : kept_) shape.push_back(size);
    return permute(reshape(rows, shape), moved(0, shape_.size(), first_));
  }
  /// x[indices] as the rows meant.
  Tensor from_result(const Tensor& result) const {
    return reshape(permute(result, moved(first_, shape_.size(), 0)), shape());
  }

 private:
  /// The true elements of a mask of x's first dimensions, by their numbers: no index can be wrong.
  void take_mask(std::string_view op, const Tensor& x, const Tensor& mask) {
    check_mask(op, x, mask, 0);
    numbers_ = to(reshape(nonzero(reshape(mask, {-1})), {-1}), x.device());
    shape_ = {numbers_.numel()};
    permuted_ = x.shape();
    for (int d = 0; d < x.dim(); ++d) {
      order_.push_back(d);
      (d < mask.dim() ? rows_ : width_) *= x.shape()[d];
      if (d >= mask.dim()) kept_.push_back(x.shape()[d]);
    }
  }

  static void check_mask(std::string_view op, const Tensor& x, const Tensor& mask, int first) {
    WEFT_CHECK(mask.dim() > 0, "{}: expected a mask with dimensions, got {}", op, mask);
    for (int d = 0; d < mask.dim(); ++d) {
      WEFT_CHECK(first + d < x.dim() && mask.shape()[d] == x.shape()[first + d],
                 "{}: the mask {} does not have the sizes of {} from dimension {} on", op, mask, x,
                 first);
    }
  }

  /// One index or none for each dimension of x: a mask is those of its elements that are true.
  static Tensors without_masks(std::string_view op, const Tensor& x, const Tensors& indices) {
    Tensors places;
    for (const Tensor& index : indices) {
      if (!index.defined() || index.dtype() != DType::boolean) {
        if (index.defined()) check_index(op, index);
        places.push_back(index);
        continue;
      }
      check_mask(op, x, index, static_cast<int>(places.size()));
      const Tensor true_places = nonzero(index);
      for (int d = 0; d < index.dim(); ++d) places.push_back(select(true_places, 1, d));
    }
    WEFT_CHECK(places.size() <= static_cast<size_t>(x.dim()),
               "{}: {} indices are more than the dimensions of {}", op, places.size(), x);
    places.resize(x.dim());
    return places;
  }

  /// The order in which `count` dimensions that begin at `from` begin at `to`.
  Shape moved(int from, int count, int to) const {
    const int dims = shape_.size() + kept_.size();
    Shape order;
    for (int d = 0; d < dims; ++d) {
      if (d < from || d >= from + count) order.push_back(d);
    }
    for (int i = 0; i < count; ++i) order.insert(to + i, from + i);
    return order;
  }

  Shape shape_;     // of the indices
  Shape order_;     // x's dimensions, the indexed ones first
  Shape permuted_;  // x's shape in that order
  Shape kept_;      // the sizes that are not indexed
  int first_ = 0;   // where the indices' dimensions begin in the result
  int64_t rows_ = 1, width_ = 1;
  Tensor numbers_;
};

/// Of each number in [0, size) whether no equal one follows.
Tensor is_last(const Tensor& numbers, int64_t size) {
  const Tensor order = to(arange(0, numbers.numel()), numbers.device());
  const Tensor last = full({size}, 0, DType::i64, numbers.device());
  kernels::index({.kind = IndexKind::kScatter, .x = order, .index = numbers, .y = last});
  return eq(index_select(last, 0, numbers), order);
}

/// rows with values at, or added at, some of them.
Tensor put_rows(const Tensor& rows, const Tensor& numbers, const Tensor& values, bool adds) {
  const Tensor y = raw::empty_like(rows);
  raw::copy(rows, y);
  kernels::index(
      {.kind = adds ? IndexKind::kAdd : IndexKind::kScatter,
       .x = values,
       .index = adds ? numbers : view::expand(view::unsqueeze(numbers, 1), values.shape()),
       .y = y});
  return record("index_put", {rows, values}, y, {numbers},
                [adds, shape = values.shape()](const Backward& b) -> Tensors {
                  const Tensor numbers = b.saved(0), &dy = b.dy();
                  const Tensor read = index_select(dy, 0, numbers);
                  if (adds) return {dy, read};
                  const Tensor zeros = full(shape, 0, dy.dtype(), dy.device());
                  const Tensor is_lost = unsqueeze(logical_not(is_last(numbers, dy.size(0))), 1);
                  return {put_rows(dy, numbers, zeros, false), masked_fill(read, is_lost, 0)};
                });
}

}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& indices) {
  check_index("index_select", indices);
  raw::check_operands("index_select", {x, indices});
  WEFT_CHECK(indices.dim() == 1, "index_select: expected indices [n], got {}", indices);
  const int axis = wrap_dim(dim, x.dim(), "index_select");
  Shape shape = x.shape();
  shape[axis] = indices.numel();
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::index({.kind = IndexKind::kSelect, .x = x, .index = indices, .y = y, .axis = axis});
  return record("index_select", {x}, y, {indices},
                [axis, shape = x.shape()](const Backward& b) -> Tensors {
                  return {spread(b.dy(), b.saved(0), shape, axis, IndexKind::kAdd)};
                });
}

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  WEFT_CHECK(weight.dim() == 2, "embedding: expected weight [V, D], got {}", weight);
  check_index("embedding", indices);
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  return reshape(index_select(weight, 0, reshape(indices, {-1})), shape);
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const int axis = wrap_dim(dim, x.dim(), "gather");
  Tensor y = Tensor::empty(index.shape(), x.dtype(), x.device());
  check_gather("gather", x, axis, index, y);
  kernels::index({.kind = IndexKind::kGather, .x = x, .index = index, .y = y, .axis = axis});
  return record("gather", {x}, y, {index}, [axis, shape = x.shape()](const Backward& b) -> Tensors {
    return {spread(b.dy(), b.saved(0), shape, axis, IndexKind::kScatterAdd)};
  });
}

Tensor index(const Tensor& x, const Tensors& indices) {
  const Rows rows("index", x, indices);
  return rows.as_result(index_select(rows.of(x), 0, rows.numbers()));
}

Tensor index_put(const Tensor& target, const Tensors& indices, const Tensor& put, bool accumulate) {
  const bool promotes = autocast_dtype() != DType::f32;
  const DType dtype = promotes ? promote(target.dtype(), put.dtype()) : target.dtype();
  const Tensor x = cast(target, dtype), values = promotes ? cast(put, dtype) : put;
  raw::check_operands("index_put", {x, values});
  WEFT_CHECK(x.dtype() == values.dtype(), "index_put: {} and {} differ in dtype", x, values);
  const Rows rows("index_put", x, indices);
  WEFT_CHECK(broadcast_shapes(values.shape(), rows.result(), "index_put") == rows.result(),
             "index_put: {} does not broadcast to the places' shape, {}", values, rows.result());
  const Tensor all = rows.from_result(expand(values, rows.result()));
  return rows.as_whole(put_rows(rows.of(x), rows.numbers(), all, accumulate));
}

Tensor nonzero(const Tensor& x) {
  WEFT_CHECK(x.defined(), "nonzero: undefined tensor");
  // How many there are decides the result's shape, so that a device would be waited for anyhow.
  const Tensor mask = raw::contiguous(to(ne(x, full({}, 0, x.dtype(), x.device())), Device{}));
  const bool* const is_set = mask.data<bool>();
  const int64_t count = std::accumulate(is_set, is_set + mask.numel(), int64_t{0});
  const Tensor places = Tensor::empty({count, x.dim()}, DType::i64);
  int64_t* next = places.data<int64_t>();
  const int64_t columns = x.dim() > 0 ? x.size(-1) : 0;
  // A row at a time, or a piece of a long one.
  std::vector<int64_t> found(std::min<int64_t>(columns, 1 << 12) + 1);
  const auto longest = static_cast<int64_t>(found.size()) - 1;
  for (int64_t first = 0, size = 0; first < mask.numel() && columns > 0; first += size) {
    const Shape place = kernels::place_of(first, mask.shape());
    const int64_t column = place[place.size() - 1];
    size = std::min(longest, columns - column);
    // Every column is written down, and kept where it is set: nobody predicts a mask.
    int64_t kept = 0;
    for (int64_t i = 0; i < size; ++i) {
      found[kept] = column + i;
      kept += is_set[first + i];
    }
    for (int64_t k = 0; k < kept; ++k, next += place.size()) {
      std::copy(place.begin(), place.end(), next);
      next[place.size() - 1] = found[k];
    }
  }
  return to(places, x.device());
}

Tensor scatter_add(const Tensor& target, int64_t dim, const Tensor& index, const Tensor& added) {
  const DType dtype = promote(target.dtype(), added.dtype());
  const bool promotes = autocast_dtype() != DType::f32;
  const Tensor x = promotes ? cast(target, dtype) : target;
  const Tensor source = promotes ? cast(added, dtype) : added;
  const int axis = wrap_dim(dim, x.dim(), "scatter_add");
  check_gather("scatter_add", x, axis, index, source);
  WEFT_CHECK(x.dtype() == source.dtype(), "scatter_add: {} and {} differ in dtype", x, source);
  Tensor y = raw::empty_like(x);
  raw::copy(x, y);
  kernels::index(
      {.kind = IndexKind::kScatterAdd, .x = source, .index = index, .y = y, .axis = axis});
  return record("scatter_add", {x, source}, y, {index}, [axis](const Backward& b) -> Tensors {
    return {b.dy(), b.needs(1) ? gather(b.dy(), axis, b.saved(0)) : Tensor()};
  });
}

}  // namespace weft::ops
