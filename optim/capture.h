// What an optimizer needs to know of a captured step (core/graph.h).
#pragma once

#include <map>

#include "core/runtime.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace weft::optim {

/// Whether the work that this thread submits to the device is being recorded.
inline bool is_capturing(Device device) {
  return device.type == DeviceType::cuda &&
         runtime::is_capturing(device.index, current_stream_handle(device));
}

/// Memory that is filled before each launch of a graph and read by it. Not out of the capture's own
/// pool, whose blocks may have served earlier work of the graph, which would overwrite it in every
/// launch: a stream of its own gives it out, which lives as long as the process.
inline Tensor empty_beside_capture(const Shape& shape, DType dtype, Device device) {
  thread_local auto& streams = *new std::map<int, Stream>;
  const StreamGuard guard(streams.try_emplace(device.index, device).first->second);
  return Tensor::empty(shape, dtype, device);
}

}  // namespace weft::optim
