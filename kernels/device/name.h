// What a device calls itself: whose measurements these are.
#pragma once

#include <string>

#include "core/device.h"

namespace weft::kernels {

/// "NVIDIA H200", "AMD EPYC 9R14", "emulated".
std::string device_name(Device device);

/// The version of a CUDA device's driver, "580.65.06"; empty where there is none to tell.
std::string driver_version(Device device);

}  // namespace weft::kernels
