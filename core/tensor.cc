#include "core/tensor.h"

#include <utility>

#include "core/allocator.h"
#include "core/stream.h"
#include "core/transfer.h"

namespace weft {

Storage::Storage(size_t bytes, Device device)
    : data_(allocator(device).allocate(bytes)), bytes_(bytes), device_(device) {}

Storage::Storage(void* data, size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}

Storage::Storage(size_t bytes, Device device, std::function<void()> on_touch)
    : data_(nullptr), bytes_(bytes), device_(device), on_touch_(std::move(on_touch)) {}

void Storage::take(Storage& from) {
  WEFT_ASSERT(on_touch_ && !data_ && from.bytes_ == bytes_ && from.device_ == device_);
  release_ = std::exchange(from.release_, nullptr);
  data_.store(from.data_.exchange(nullptr), std::memory_order_release);
}

void Storage::free() {
  WEFT_ASSERT(on_touch_);
  if (release_) {
    std::exchange(release_, nullptr)();
  } else {
    allocator(device_).deallocate(data_, bytes_);
  }
  data_ = nullptr;
}

void* Storage::touch() const {
  if (bytes_ == 0) return nullptr;
  on_touch_();
  WEFT_ASSERT(data_.load());
  return data_;
}

Storage::~Storage() {
  try {
    if (release_) {
      release_();
    } else {
      allocator(device_).deallocate(data_, bytes_);
    }
  } catch (const std::exception&) {
    // A device that has failed keeps its memory; the next call that may throw says why.
  }
}

namespace {

bool has_contiguous_strides(const Shape& shape, const Strides& strides) {
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

}  // namespace

Tensor Tensor::view_of(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
                       int64_t offset, DType dtype) {
  weft::nbytes(shape, dtype);
  const Span span = span_of(shape, strides);
  const auto held = static_cast<int64_t>(storage->bytes() / weft::itemsize(dtype));
  WEFT_CHECK(span.size == 0 || (offset >= -span.first && span.size <= held &&
                                offset + span.first <= held - span.size),
             "Tensor::view_of: {} {} with strides {} from element {} on does not lie within a "
             "storage of {} bytes",
             dtype, shape, strides, offset, storage->bytes());
  Tensor tensor;
  tensor.impl_ = std::make_shared<Impl>(Impl{.storage = std::move(storage),
                                             .shape = shape,
                                             .strides = strides,
                                             .offset = offset,
                                             .numel = weft::numel(shape),
                                             .dtype = dtype,
                                             .contiguous = has_contiguous_strides(shape, strides)});
  return tensor;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  const size_t bytes = weft::nbytes(shape, dtype);
  Tensor tensor;
  tensor.impl_ =
      std::make_shared<Impl>(Impl{.storage = std::make_shared<Storage>(bytes, device),
                                  .shape = shape,
                                  .strides = contiguous_strides(shape),
                                  .numel = static_cast<int64_t>(bytes / weft::itemsize(dtype)),
                                  .dtype = dtype});
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor tensor = empty(shape, dtype, device);
  if (tensor.numel() == 0) return tensor;
  if (device.type == DeviceType::cpu) {
    std::memset(tensor.raw(), 0, tensor.nbytes());
  } else {
    runtime::set_bytes(device.index, tensor.raw(), 0, tensor.nbytes(),
                       current_stream_handle(device));
  }
  return tensor;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype) {
  Tensor tensor = empty(shape, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    std::fill_n(tensor.data<T>(), tensor.numel(), from_double<T>(value));
  });
  return tensor;
}

double Tensor::item() const {
  WEFT_CHECK(numel() == 1, "item: expected a tensor of one element, got {}", *this);
  return to_vector()[0];
}

std::vector<double> Tensor::to_vector() const {
  if (device().type != DeviceType::cpu) return to_device(*this, Device{}).to_vector();
  std::vector<double> values;
  values.reserve(numel());
  visit_dtype(dtype(), [&]<class T>(TypeTag<T>) {
    const T* first = data<T>();
    for_each_offset(shape(), strides(), [&](int64_t i) { values.push_back(to_double(first[i])); });
  });
  return values;
}

Tensor Tensor::alias() const {
  Tensor tensor;
  tensor.impl_ = std::make_shared<Impl>(*impl_);
  tensor.impl_->unrecorded_since.reset();
  tensor.impl_->autograd.reset();
  return tensor;
}

void Tensor::set_data(const Tensor& other) {
  WEFT_CHECK(defined() && other.defined(), "set_data: undefined tensor");
  std::shared_ptr<AutogradMeta> kept = impl_->autograd;
  *impl_ = *other.impl_;
  impl_->autograd = std::move(kept);
  if (impl_->autograd) impl_->autograd->view.reset();
}

bool Tensor::requires_grad() const {
  const AutogradMeta* meta = autograd();
  if (!meta) return false;
  if (meta->requires_grad || meta->grad_fn) return true;
  const AutogradMeta* const base = meta->view ? meta->view->base.autograd() : nullptr;
  return base && base->grad_fn;
}

AutogradMeta& Tensor::make_autograd() const {
  WEFT_CHECK(defined(), "an undefined tensor has no gradient");
  if (!impl_->autograd) impl_->autograd = std::make_shared<AutogradMeta>();
  return *impl_->autograd;
}

Tensor& Tensor::set_requires_grad(bool value) {
  WEFT_CHECK(!value || is_floating(dtype()),
             "set_requires_grad: only floating-point tensors have gradients, got {}", *this);
  AutogradMeta& meta = make_autograd();
  const bool has_history = requires_grad() && !meta.requires_grad;
  WEFT_CHECK(!has_history || value,
             "set_requires_grad(false): {} is the result of a recorded op; use detach()", *this);
  if (has_history) return *this;
  meta.requires_grad = value;
  if (value && meta.view) {  // a leaf follows nobody
    meta.view.reset();
    unrecorded_since() = storage()->recorded_changes();
  }
  return *this;
}

Tensor Tensor::grad() const { return autograd() ? autograd()->grad : Tensor(); }

void Tensor::set_grad(const Tensor& grad) const { make_autograd().grad = grad; }

size_t nbytes(const Shape& shape, DType dtype) {
  for (int64_t size : shape) {
    WEFT_CHECK(size >= 0, "a tensor's sizes must not be negative, got {}", shape);
  }
  Shape all = shape;
  std::ranges::replace(all, 0, 1);
  const std::optional<int64_t> elements = try_numel(all);
  int64_t bytes;
  WEFT_CHECK(elements && !__builtin_mul_overflow(
                             *elements, static_cast<int64_t>(weft::itemsize(dtype)), &bytes),
             "{} {} would take more than 2^63 - 1 bytes", dtype, shape);
  return numel(shape) == 0 ? 0 : static_cast<size_t>(bytes);
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined tensor";
  return fmt::format("{} {} on {}", tensor.dtype(), tensor.shape(), tensor.device());
}

}  // namespace weft
