// What an optimizer needs to know of a captured step.
#pragma once

#include "core/graph.h"
#include "core/runtime.h"

namespace weft::optim {

/// Whether the work that this thread submits to the device is being recorded.
inline bool is_capturing(Device device) {
  return device.type == DeviceType::cuda &&
         runtime::is_capturing(device.index, current_stream_handle(device));
}

}  // namespace weft::optim
