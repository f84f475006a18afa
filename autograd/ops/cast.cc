#include "autograd/ops.h"
#include "autograd/ops/raw.h"

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
  WEFT_CHECK(x.device().type == DeviceType::cpu && device.type == DeviceType::cpu,
             "to: device {} is not available in this build",
             device.type == DeviceType::cpu ? x.device() : device);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  raw::copy(x, y);
  return record("to", {x}, y, {},
                [old = x.device()](const Backward& b) -> Tensors { return {to(b.dy(), old)}; });
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor clone(const Tensor& x) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  raw::copy(x, y);
  return record("clone", {x}, y, {}, [](const Backward& b) -> Tensors { return {b.dy()}; });
}

}  // namespace weft::ops
