// Moving elements by index along one axis. For an axis in the middle:
//
//   gather:       y[a,i,b] = x[a, index[a,i,b], b]       index: [.., I, ..] as y
//   select:       y[a,i,b] = x[a, index[i], b]           index: [I]  (axis 0: an embedding)
//   scatter:      y[a, index[a,i,b], b]  = x[a,i,b]      index: [.., I, ..] as x; the last one wins
//   scatter_add:  y[a, index[a,i,b], b] += x[a,i,b]
//   add:          y[a, index[i], b]     += x[a,i,b]      index: [I]
//
// gather and select read x and assign y (=); the others read x and y and change y in place (+=, or
// = at the indexed positions alone). Besides the axis x and y have the same sizes; for gather and
// scatter the index, and with it its y or x, may be smaller than the other tensor there (as in
// PyTorch). Additions happen in the order of increasing i, in f32 for f16 and bf16 (i64 for
// integers, f64 for f64) with one rounding at the end: gradients of embeddings are deterministic.
//
// x, y: the same dtype (additions: f64 f32 f16 bf16 i64 i32); index: i64 or i32. All may have any
// strides. An index outside [0, size of the axis) throws Error naming the index, its position and
// the size, before anything is written; with wrap_negative [-size, 0) counts from the back.
#pragma once

#include <span>
#include <vector>

#include "kernels/op.h"

namespace weft::kernels {

enum class IndexKind { kGather, kSelect, kScatter, kScatterAdd, kAdd };

/// "gather", "index_select", "scatter", "scatter_add", "index_add"
std::string_view name(IndexKind kind);

struct IndexProblem {
  IndexKind kind = IndexKind::kGather;
  Tensor x;
  Tensor index;
  Tensor y;
  int axis = 0;  // wrapped by the op
  bool wrap_negative = false;

  /// True when x is read at the indices, false when y is written at them.
  bool reads() const { return kind == IndexKind::kGather || kind == IndexKind::kSelect; }
  bool adds() const { return kind == IndexKind::kScatterAdd || kind == IndexKind::kAdd; }
  /// True when the index is a list along the axis, false when every element has its own.
  bool by_slice() const { return kind == IndexKind::kSelect || kind == IndexKind::kAdd; }
  /// The tensor that the indices point into.
  const Tensor& indexed() const { return reads() ? x : y; }
  /// The shape of what is moved.
  const Shape& moved() const {
    return !by_slice() ? index.shape() : reads() ? y.shape() : x.shape();
  }
  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const;
};

inline constexpr DTypeSet kIndexAddTypes = kComputeTypes | DTypeSet{DType::i64, DType::i32};
inline bool index_is_supported(const IndexProblem& p) {
  return !p.adds() || kIndexAddTypes.contains(p.dtype());
}

WEFT_DECLARE_OP(index, IndexProblem);

/// Calls f with a zero of the C++ type of one of kIndexAddTypes.
template <class F>
void with_addable(DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (kIndexAddTypes.contains(dtype_of<T>())) f(T{});
  });
}

/// The index of an element of a shape by its number in row-major order.
inline Shape place_of(int64_t number, const Shape& shape) {
  Shape place = shape;
  for (int d = shape.size() - 1; d >= 0; --d) {
    place[d] = number % shape[d];
    number /= shape[d];
  }
  return place;
}

/// All indices as i64 in row-major order, wrapped: the problem's own memory where they lie there
/// like that, or a copy.
struct Indices {
  std::vector<int64_t> copy;
  std::span<const int64_t> list;
};

/// Throws Error on the first index outside the axis. Every variant's first pass.
Indices checked_indices(const IndexProblem& problem);

}  // namespace weft::kernels
