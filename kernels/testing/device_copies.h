// A problem's memory on another device and back.
//
// Whole storages travel: gaps between strided elements, guard words, misaligned offsets and outputs
// that share memory with inputs arrive as they are, and come back as the device left them.
#pragma once

#include <map>
#include <memory>

#include "kernels/testing/fields.h"

namespace weft::kernels {

/// All of a storage as bytes.
Tensor bytes_of(const std::shared_ptr<Storage>& storage);

class DeviceCopies {
 public:
  explicit DeviceCopies(Device device) : device_(device) {}

  /// The same problem on the device.
  template <class Problem>
  Problem move(const Problem& problem) {
    Problem moved = problem;
    for_each_tensor(moved, [this](Tensor& tensor) { tensor = moved_tensor(tensor); });
    return moved;
  }

  /// Where a storage of a moved problem's tensor went.
  std::shared_ptr<Storage> copy_of(const Tensor& home) const {
    return storages_.at(home.storage());
  }

  /// Waits for the device and copies every storage home.
  void bring_back() const;

 private:
  Tensor moved_tensor(const Tensor& tensor);

  Device device_;
  std::map<std::shared_ptr<Storage>, std::shared_ptr<Storage>> storages_;  // home -> device
};

}  // namespace weft::kernels
