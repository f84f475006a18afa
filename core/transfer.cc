#include "core/transfer.h"

#include "core/stream.h"

namespace weft {
namespace {

/// Bytes before and after the first element that a tensor's elements span.
struct Span {
  int64_t below = 0, size = 0;
};

Span span_of(const Tensor& x) {
  if (x.numel() == 0) return {};
  int64_t low = 0, high = 0;
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t reach = (x.shape()[d] - 1) * x.strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<int64_t>(x.itemsize());
  return {-low * size, (high - low + 1) * size};
}

void copy_bytes(Device from_device, const void* from, Device to_device, void* to, size_t bytes) {
  if (bytes == 0) return;
  if (from_device.type == DeviceType::cpu && to_device.type == DeviceType::cpu) {
    std::memcpy(to, from, bytes);
  } else if (from_device.type == DeviceType::cpu || from_device == to_device) {
    runtime::copy(to_device.index, to, from, bytes, current_stream_handle(to_device));
  } else if (to_device.type == DeviceType::cpu) {
    const Stream stream = current_stream(from_device);
    runtime::copy(from_device.index, to, from, bytes, stream.handle());
    stream.synchronize();
  } else {
    Event made(from_device);
    made.record(current_stream(from_device));
    const Stream stream = current_stream(to_device);
    stream.wait(made);
    runtime::copy_peer(to_device.index, to, from_device.index, from, bytes, stream.handle());
    // The sender may free or change its tensor as soon as we return.
    stream.synchronize();
  }
}

}  // namespace

Tensor to_device(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  const Span span = span_of(x);
  const auto size = static_cast<int64_t>(x.itemsize());
  auto storage = std::make_shared<Storage>(static_cast<size_t>(span.size), device);
  copy_bytes(x.device(), static_cast<const char*>(x.raw()) - span.below, device, storage->data(),
             static_cast<size_t>(span.size));
  return Tensor::view_of(std::move(storage), x.shape(), x.strides(), span.below / size, x.dtype());
}

void copy_same_layout(const Tensor& from, const Tensor& to) {
  WEFT_ASSERT(from.shape() == to.shape() && from.dtype() == to.dtype() &&
              (from.strides() == to.strides() || (from.is_contiguous() && to.is_contiguous())));
  const Span span = span_of(from);
  copy_bytes(from.device(), static_cast<const char*>(from.raw()) - span.below, to.device(),
             static_cast<char*>(to.raw()) - span.below, static_cast<size_t>(span.size));
}

Tensor empty_pinned(const Shape& shape, DType dtype) {
  if (runtime::device_count() == 0) return Tensor::empty(shape, dtype);
  const size_t bytes = static_cast<size_t>(numel(shape)) * itemsize(dtype);
  if (bytes == 0) return Tensor::empty(shape, dtype);
  void* data = runtime::allocate_pinned(bytes);
  auto storage = std::make_shared<Storage>(data, bytes, Device{},
                                           [data] { runtime::deallocate_pinned(data); });
  return Tensor::view_of(std::move(storage), shape, contiguous_strides(shape), 0, dtype);
}

}  // namespace weft
