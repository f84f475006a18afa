// Views: new shapes and strides on the same storage. No element is ever copied.
//
// These are the untracked views that kernels and ops are made of; ops:: has the differentiable ones
// under the same names. Each throws Error naming itself, the tensor and the argument.
#pragma once

#include <optional>

#include "core/tensor.h"

namespace weft::view {

/// The elements begin, begin+step, ... below end of a dimension. Negative begin and end count from
/// the back; both are clamped as Python does. step > 0.
Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);
/// `length` elements of a dimension from `begin`. Throws Error outside the dimension.
Tensor narrow(const Tensor& x, int64_t dim, int64_t begin, int64_t length);
/// One index of a dimension, which disappears.
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// Two dimensions swapped.
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
/// Dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const Shape& order);
/// The same elements in row-major order under another shape; one size may be -1. Throws Error when
/// the strides do not allow it without a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// As reshape; nothing when a copy would be needed.
std::optional<Tensor> try_reshape(const Tensor& x, const Shape& shape);
/// Dimensions of size 1, and new leading ones, repeated with stride 0. -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// A dimension of size 1 removed, or all of them.
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor squeeze(const Tensor& x);
/// A dimension of size 1 put in front of dimension `dim`; dim may be x.dim().
Tensor unsqueeze(const Tensor& x, int64_t dim);

/// Whether several indices of x may name one element, as in an expanded tensor.
bool overlaps_itself(const Tensor& x);
/// Whether some element belongs to both.
bool share_elements(const Tensor& a, const Tensor& b);

/// The shape with its -1, if any, worked out for `numel` elements. Throws Error naming `op`.
Shape infer_shape(const Shape& shape, int64_t numel, std::string_view op);

}  // namespace weft::view
