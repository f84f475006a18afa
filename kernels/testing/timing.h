// Times of work on a device, from a cold cache.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace weft::kernels {

/// Takes memory out of a device's caches.
class ColdCache {
 public:
  explicit ColdCache(Device device);
  /// Submits it, on the current stream. `memory`: contiguous tensors of the device.
  void evict(const std::vector<Tensor>& memory) const;

 private:
  Device device_;
  Tensor sweep_;  // what is overwritten, where lines cannot be flushed one by one
};

/// Quartiles of samples.
struct Spread {
  double least = 0, lower = 0, median = 0, upper = 0;
};
/// Of at least one sample; between two samples it interpolates.
Spread spread_of(std::vector<double> samples);

}  // namespace weft::kernels
