// Kernels without history: the few computations that several ops share.
#pragma once

#include "autograd/ops.h"
#include "core/tensor.h"

namespace weft::raw {

/// Elements of `from` into `to`, of the same shape, converted to its dtype.
void copy(const Tensor& from, const Tensor& to);
/// A contiguous tensor of the dtype; x itself where it is one already.
Tensor contiguous(const Tensor& x, DType dtype);
inline Tensor contiguous(const Tensor& x) { return contiguous(x, x.dtype()); }
/// Uninitialised, contiguous.
inline Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}
/// f32 in the place of what has 16 bits or fewer, which cannot hold counts and their reciprocals.
inline DType widened(DType dtype) { return itemsize(dtype) < 4 ? DType::f32 : dtype; }
/// x in that dtype, in recorded ops: what a formula squares may leave f16's range.
inline Tensor widened(const Tensor& x) {
  return x.defined() && itemsize(x.dtype()) < 4 ? ops::cast(x, DType::f32) : x;
}
/// In what dtype a number stands beside a floating one in arithmetic: in that one where it holds
/// the number, else in the dtype of the arithmetic, f32 (x.half() * 1e-8 is not x * 0).
DType number_dtype(DType beside, double value);
/// y = a b, batched; dtype of y as given. `scale` is for fp8 (kernels/gemm/gemm.h).
Tensor matmul(const Tensor& a, const Tensor& b, DType dtype, double scale = 1);
/// The shape with another last size.
inline Shape with_last(Shape shape, int64_t size) {
  shape[shape.size() - 1] = size;
  return shape;
}
/// The shape [rows, n] of x [..., n], whose n may be 0.
Shape as_rows(const Tensor& x);
/// Sum over all dimensions but the last, in the given dtype: a bias's gradient.
Tensor sum_rows(const Tensor& x, DType dtype);

/// Throws Error naming the op unless all defined tensors lie on one device and the first `floating`
/// are floating.
void check_operands(std::string_view op, std::initializer_list<Tensor> tensors, int floating = 0);
/// Throws Error naming the op where f64 stands beside narrower floats: kernels mix those alone.
void check_f64(std::string_view op, std::initializer_list<Tensor> tensors);
/// Whether x, which may be undefined, has a NaN among its elements.
bool holds_nan(const Tensor& x);
/// Throws Error naming the op unless x is floating.
void check_floating(std::string_view op, const Tensor& x);

}  // namespace weft::raw
