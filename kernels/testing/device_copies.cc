#include "kernels/testing/device_copies.h"

#include "core/transfer.h"

namespace weft::kernels {

Tensor bytes_of(const std::shared_ptr<Storage>& storage) {
  return Tensor::view_of(storage, {static_cast<int64_t>(storage->bytes())}, {1}, 0, DType::u8);
}

Tensor DeviceCopies::moved_tensor(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  std::shared_ptr<Storage>& there = storages_[tensor.storage()];
  if (!there) there = to_device(bytes_of(tensor.storage()), device_).storage();
  return Tensor::view_of(there, tensor.shape(), tensor.strides(), tensor.offset(), tensor.dtype());
}

void DeviceCopies::bring_back() const {
  for (const auto& [home, there] : storages_) copy_same_layout(bytes_of(there), bytes_of(home));
}

}  // namespace weft::kernels
