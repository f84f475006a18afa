#include "core/transfer.h"

#include "core/graph.h"
#include "core/stream.h"

namespace weft {
namespace {

/// Where a tensor's elements begin in memory, and their bytes up to the last.
struct Bytes {
  char* first;
  size_t size;
  int64_t before;  // elements from there to the tensor's first
};

Bytes bytes_of(const Tensor& x) {
  const Span span = span_of(x.shape(), x.strides());
  const auto item = static_cast<int64_t>(x.itemsize());
  return {static_cast<char*>(x.raw()) + span.first * item, static_cast<size_t>(span.size * item),
          -span.first};
}

void copy_bytes(Device from_device, const void* from, Device to_device, void* to, size_t bytes) {
  if (bytes == 0) return;
  // A launch would read, or write, what lies at that address then.
  WEFT_CHECK(from_device.type == to_device.type || !DeviceGraph::capturing(),
             "a copy from {} to {} is not possible while a graph is captured; make it before",
             to_string(from_device), to_string(to_device));
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
  const Bytes bytes = bytes_of(x);
  auto storage = std::make_shared<Storage>(bytes.size, device);
  copy_bytes(x.device(), bytes.first, device, storage->data(), bytes.size);
  return Tensor::view_of(std::move(storage), x.shape(), x.strides(), bytes.before, x.dtype());
}

void copy_same_layout(const Tensor& from, const Tensor& to) {
  WEFT_ASSERT(from.shape() == to.shape() && from.dtype() == to.dtype() &&
              (from.strides() == to.strides() || (from.is_contiguous() && to.is_contiguous())));
  const Bytes source = bytes_of(from);
  copy_bytes(from.device(), source.first, to.device(), bytes_of(to).first, source.size);
}

Tensor empty_pinned(const Shape& shape, DType dtype) {
  const size_t bytes = nbytes(shape, dtype);
  if (bytes == 0 || runtime::device_count() == 0) return Tensor::empty(shape, dtype);
  void* data = runtime::allocate_pinned(bytes);
  auto storage = std::make_shared<Storage>(data, bytes, Device{},
                                           [data] { runtime::deallocate_pinned(data); });
  return Tensor::view_of(std::move(storage), shape, contiguous_strides(shape), 0, dtype);
}

}  // namespace weft
