// Whether the work that a thread submits to a device is being recorded (core/graph.h).
#pragma once

#include "core/runtime.h"
#include "core/stream.h"

namespace weft::optim {

inline bool is_capturing(Device device) {
  return device.type == DeviceType::cuda &&
         runtime::is_capturing(device.index, current_stream_handle(device));
}

}  // namespace weft::optim
