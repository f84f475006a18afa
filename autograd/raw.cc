#include "autograd/raw.h"

#include <algorithm>
#include <cmath>

#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/gemm/gemm.h"
#include "kernels/reduce/reduce.h"

namespace weft::raw {

void copy(const Tensor& from, const Tensor& to) { kernels::copy({.x = from, .y = to}); }

Tensor contiguous(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype && x.is_contiguous()) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  copy(x, y);
  return y;
}

DType number_dtype(DType beside, double value) {
  const bool holds_it = visit_dtype(beside, [&]<class T>(TypeTag<T>) {
    return itemsize(beside) >= 4 || to_double(from_double<T>(value)) == value;
  });
  return holds_it ? beside : DType::f32;
}

Tensor matmul(const Tensor& a, const Tensor& b, DType dtype, double scale) {
  Tensor c = Tensor::empty(with_last(a.shape(), b.size(-1)), dtype, a.device());
  kernels::gemm({.a = a, .b = b, .c = c, .scale = scale});
  return c;
}

Shape as_rows(const Tensor& x) {
  Shape leading = x.shape();
  leading.erase(x.dim() - 1);
  return {numel(leading), x.size(-1)};
}

Tensor sum_rows(const Tensor& x, DType dtype) {
  Tensor y = Tensor::empty({1, x.size(-1)}, dtype, x.device());
  kernels::reduce(
      {.x = view::reshape(x, as_rows(x)), .y = y, .reduction = kernels::Reduction::kSum});
  return view::reshape(y, {x.size(-1)});
}

void check_operands(std::string_view op, std::initializer_list<Tensor> tensors, int floating) {
  const Tensor* first = nullptr;
  for (const Tensor& tensor : tensors) {
    if (floating-- > 0) check_floating(op, tensor);
    if (!tensor.defined()) continue;
    if (!first) first = &tensor;
    WEFT_CHECK(tensor.device() == first->device(), "{}: {} and {} are on different devices", op,
               *first, tensor);
  }
}

void check_f64(std::string_view op, std::initializer_list<Tensor> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || !is_floating(tensor.dtype())) continue;
    if (!first) first = &tensor;
    WEFT_CHECK((tensor.dtype() == DType::f64) == (first->dtype() == DType::f64),
               "{}: f64 is not mixed with narrower floats, expected all or none of them to be f64, "
               "got {} and {}; cast() one of them",
               op, *first, tensor);
  }
}

bool holds_nan(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return false;
  return std::ranges::any_of(x.to_vector(), [](double value) { return std::isnan(value); });
}

void check_floating(std::string_view op, const Tensor& x) {
  WEFT_CHECK(x.defined(), "{}: undefined tensor", op);
  WEFT_CHECK(is_floating(x.dtype()), "{}: expected a floating-point tensor, got {}", op, x);
}

}  // namespace weft::raw
