// Tensors moved between devices. Nothing is recorded: ops::to is the differentiable form.
#pragma once

#include "core/tensor.h"

namespace weft {

/// x on the device: x itself when it is there. The bytes that x spans are copied and its strides
/// kept, so views of a large storage are best made contiguous first. Copies to the CPU wait for the
/// device; copies from empty_pinned()'s memory return at once, in the order of the current stream.
Tensor to_device(const Tensor& x, Device device);

/// The elements of `from` into `to`, of one shape, dtype and strides, on any two devices; waits as
/// to_device does. With `to` on the CPU the data is there on return.
void copy_same_layout(const Tensor& from, const Tensor& to);

/// Uninitialised CPU memory that a device copies from and to at full speed and without waiting;
/// ordinary memory where there is no CUDA device. Whoever fills it again waits for the copy first.
Tensor empty_pinned(const Shape& shape, DType dtype);

}  // namespace weft
