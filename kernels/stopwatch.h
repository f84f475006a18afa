// How long work takes on a device.
#pragma once

#include <functional>

#include "core/device.h"

namespace weft::kernels {

/// Seconds that the device takes for the work that run submits to the current stream: between two
/// events on a GPU, real or emulated, by the clock on a CPU.
double time_run(Device device, const std::function<void()>& run);

}  // namespace weft::kernels
