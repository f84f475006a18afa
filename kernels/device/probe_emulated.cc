// Flavours without CUDA: no device, or the emulated ones.
#include "core/runtime.h"
#include "kernels/device/probe.h"

namespace weft::kernels {

CudaDevices find_cuda_devices() {
  CudaDevices result;
  result.reason = runtime::no_device_reason();
  for (int index = 0; index < runtime::device_count(); ++index) {
    const runtime::DeviceLimits& limits = runtime::limits(index);
    result.devices.push_back({.index = index,
                              .name = "emulated",
                              .compute_capability = limits.compute_capability,
                              .memory_bytes = runtime::memory_info(index).total,
                              .multiprocessors = limits.multiprocessors});
  }
  return result;
}

std::string probe_cuda_device(int) { return ""; }

}  // namespace weft::kernels
