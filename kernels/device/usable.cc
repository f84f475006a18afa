#include "core/runtime.h"
#include "kernels/device/probe.h"

namespace weft::kernels {

void require_usable(Device device) {
  require_device(device);
  if (device.type == DeviceType::cuda) require_usable(device, probe_cuda_devices());
}

void require_usable(Device device, const CudaDevices& found) {
  for (const CudaDevice& candidate : found.devices) {
    if (candidate.index != device.index) continue;
    WEFT_CHECK(candidate.usable(),
               "device {} ({}, compute capability {}.{}) does not run our kernels: {}; they are "
               "built for compute capability 8.0 and later. Use --device cpu",
               device, candidate.name, candidate.compute_capability / 10,
               candidate.compute_capability % 10, candidate.problem);
  }
}

bool is_usable(Device device) {
  try {
    require_usable(device);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace weft::kernels
