#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/runtime.h"
#include "core/transfer.h"

namespace weft::ops {

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  raw::copy(x, y);
  if (!is_floating(dtype)) return y;
  return record("cast", {x}, y, {},
                [old = x.dtype()](const Backward& b) -> Tensors { return {cast(b.dy(), old)}; });
}

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  require_device(device);
  // Between CPU addresses elements are copied; to and from CUDA the bytes travel as they lie.
  Tensor y;
  if (x.device().type == device.type && device.type == DeviceType::cpu) {
    y = Tensor::empty(x.shape(), x.dtype(), device);
    raw::copy(x, y);
  } else {
    y = to_device(raw::contiguous(x, x.dtype()), device);
  }
  return record("to", {x}, y, {},
                [old = x.device()](const Backward& b) -> Tensors { return {to(b.dy(), old)}; });
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor clone(const Tensor& x) {
  Tensor y = raw::empty_like(x);
  raw::copy(x, y);
  return record("clone", {x}, y, {}, [](const Backward& b) -> Tensors { return {b.dy()}; });
}

}  // namespace weft::ops
