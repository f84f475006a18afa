// Tensor: a cheap handle on storage, shape, strides, offset, dtype and device.
//
//   Tensor x = Tensor::zeros({2, 3}, DType::f32);
//   x.data<float>()[0] = 1;
//   Tensor row = view::select(x, 0, 1);   // shares x's storage
//
// Copying a Tensor copies the handle: both name the same data and the same gradient. The views in
// core/view.h never copy elements. Nothing here computes; see kernels/ and autograd/.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace weft {

class Node;  // a recorded operation: autograd/tape.h
struct AutogradMeta;

/// A block of device memory with the count of in-place changes made to it.
class Storage {
 public:
  Storage(size_t bytes, Device device);
  /// Wraps memory that someone else owns and `release` gives back.
  Storage(void* data, size_t bytes, Device device, std::function<void()> release);
  /// Memory that comes and goes while handles on it remain: parameters that a rank gathers and lets
  /// go again. It begins without; data() then calls `on_touch`, which is to call take().
  Storage(size_t bytes, Device device, std::function<void()> on_touch);
  ~Storage();

  void* data() const {
    void* const data = data_.load(std::memory_order_acquire);
    if (!data && on_touch_) [[unlikely]]
      return touch();
    return data;
  }
  /// Of memory that comes and goes: takes the block of another storage of the same size and device,
  /// with what is in it, so that a thread which touches it meanwhile finds all of it or none; gives
  /// it back; whether there is one.
  void take(Storage& from);
  void free();
  bool is_resident() const { return data_ != nullptr || bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// False for memory of someone else and for memory that comes and goes: others may look on there
  /// though this is the only storage that a tensor has.
  bool is_owner() const { return !release_ && !on_touch_; }
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// In-place changes among these that were recorded for a backward pass.
  uint64_t recorded_changes() const { return recorded_changes_.load(std::memory_order_relaxed); }
  void count_recorded_change() { recorded_changes_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* touch() const;

  std::atomic<void*> data_;
  size_t bytes_;
  Device device_;
  std::function<void()> release_, on_touch_;
  std::atomic<uint64_t> version_{0}, recorded_changes_{0};
};

class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised, contiguous. Throws Error as nbytes() below.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
  /// Every element `value`, rounded to the dtype. CPU only; ops::full serves every device.
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32);
  /// A copy of `values` on the CPU, in row-major order. Throws Error when the count is not the
  /// shape's.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  static Tensor scalar(double value, DType dtype = DType::f32) { return full({}, value, dtype); }
  /// A view of a storage; strides and offset in elements. Throws Error naming dtype, shape,
  /// strides and offset when an element lies outside the storage.
  static Tensor view_of(std::shared_ptr<Storage> storage, const Shape& shape,
                        const Strides& strides, int64_t offset, DType dtype);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return impl_->shape; }
  const Strides& strides() const { return impl_->strides; }
  int dim() const { return impl_->shape.size(); }
  /// Size or stride of a dimension; negative ones count from the back.
  int64_t size(int64_t dim) const { return shape()[wrap_dim(dim, this->dim(), "size")]; }
  int64_t stride(int64_t dim) const { return strides()[wrap_dim(dim, this->dim(), "stride")]; }
  int64_t numel() const { return impl_->numel; }
  int64_t offset() const { return impl_->offset; }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device(); }
  size_t itemsize() const { return weft::itemsize(dtype()); }
  size_t nbytes() const { return numel() * itemsize(); }
  bool is_contiguous() const { return impl_->contiguous; }
  const std::shared_ptr<Storage>& storage() const { return impl_->storage; }

  /// The first element; null where the storage has no bytes. The typed form requires T to be the
  /// dtype's type.
  void* raw() const {
    char* const data = static_cast<char*>(impl_->storage->data());
    return data == nullptr ? nullptr : data + impl_->offset * static_cast<int64_t>(itemsize());
  }
  template <class T>
  T* data() const {
    WEFT_ASSERT(dtype_of<T>() == dtype());
    return static_cast<T*>(raw());
  }
  /// The only element as a double; throws Error unless there is exactly one. Waits for a device.
  double item() const;
  /// Elements in row-major order as doubles. Waits for a device.
  std::vector<double> to_vector() const;

  /// Same storage and metadata, no autograd history.
  Tensor alias() const;
  /// Makes this tensor, and every handle on it, stand for `other`'s data; autograd metadata stays,
  /// but the tensor is no longer a view of another.
  void set_data(const Tensor& other);
  /// Says that the elements were changed in place.
  void bump_version() const { impl_->storage->bump_version(); }
  uint64_t version() const { return impl_->storage->version(); }
  /// True when no other handle, view or saved tensor shares the elements.
  bool is_unique() const { return impl_.use_count() == 1 && storage().use_count() == 1; }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  // Autograd. A leaf that requires a gradient is a parameter; others carry the Node that made them.
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value);
  /// The accumulated gradient; undefined until backward() has run.
  Tensor grad() const;
  void set_grad(const Tensor& grad) const;
  AutogradMeta* autograd() const { return impl_ ? impl_->autograd.get() : nullptr; }
  AutogradMeta& make_autograd() const;
  std::shared_ptr<AutogradMeta>& autograd_handle() const { return impl_->autograd; }
  /// Set for a view taken while nothing was recorded: it has no history and cannot follow that of
  /// its base. The storage's recorded changes at that time.
  std::optional<uint64_t>& unrecorded_since() const { return impl_->unrecorded_since; }
  const void* id() const { return impl_.get(); }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    Shape shape;
    Strides strides;
    int64_t offset = 0;
    int64_t numel = 0;
    DType dtype = DType::f32;
    bool contiguous = true;
    std::optional<uint64_t> unrecorded_since;
    std::shared_ptr<AutogradMeta> autograd;
  };

  std::shared_ptr<Impl> impl_;
};

/// Tensors with their names, in order: parameters, buffers, the contents of a checkpoint.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Of a view that was recorded: the tensor it shows, itself no view, and the history of that tensor
/// which the view's own was derived from. An in-place change of the base, or of another of its
/// views, gives the base a new history, from which the view's is then derived anew.
struct ViewOrigin {
  Tensor base;
  std::shared_ptr<Node> base_grad_fn;
};

/// What the tape knows of a tensor.
struct AutogradMeta {
  bool requires_grad = false;
  std::shared_ptr<Node> grad_fn;  // null for leaves
  int output_index = 0;           // which of grad_fn's outputs
  Tensor grad;
  std::optional<ViewOrigin> view;
  // Of leaves: see register_hook and register_ready_hook in autograd/backward.h.
  std::vector<std::function<Tensor(const Tensor&)>> hooks;
  std::vector<std::function<void()>> ready_hooks;
};

/// Bytes of that many elements. Throws Error naming dtype and shape beyond 2^63 - 1, which holds
/// for the tensors of a shape whatever their strides.
size_t nbytes(const Shape& shape, DType dtype);

/// "f32 [2, 3] on cpu", for messages.
std::string describe(const Tensor& tensor);

/// Calls f(offset) with the element offset of every index, in row-major order.
template <class F>
void for_each_offset(const Shape& shape, const Strides& strides, F&& f) {
  const int dims = shape.size();
  if (numel(shape) == 0) return;
  int64_t index[kMaxDims] = {};
  int64_t offset = 0;
  while (true) {
    f(offset);
    int d = dims - 1;
    for (; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  WEFT_CHECK(static_cast<int64_t>(values.size()) == weft::numel(shape),
             "Tensor::from: shape {} holds {} elements, got {}", shape, weft::numel(shape),
             values.size());
  Tensor tensor = empty(shape, dtype_of<T>());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

}  // namespace weft

template <>
struct fmt::formatter<weft::Tensor> : weft::PlainFormatter {
  auto format(const weft::Tensor& tensor, fmt::format_context& context) const {
    return write(weft::describe(tensor), context);
  }
};
