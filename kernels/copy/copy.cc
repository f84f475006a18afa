#include "kernels/copy/copy.h"

namespace weft::kernels {

#define WEFT_OP copy
#define WEFT_PROBLEM CopyProblem
#include "kernels/op_list_inl.h"

std::string CopyProblem::describe() const { return fmt::format("copy({} to {})", x, y); }

Tensor contiguous(const Tensor& x) { return contiguous(x, x.dtype()); }

Tensor contiguous(const Tensor& x, DType dtype) {
  if (x.is_contiguous() && x.dtype() == dtype) return x;
  const Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  copy({.x = x, .y = y});
  return y;
}

Tensor contiguous_output(const Tensor& y) {
  return !y.defined() || y.is_contiguous() ? y : Tensor::empty(y.shape(), y.dtype(), y.device());
}

void finish_output(const Tensor& written, const Tensor& y) {
  if (y.defined() && !written.is_same(y)) copy({.x = written, .y = y});
}

}  // namespace weft::kernels
