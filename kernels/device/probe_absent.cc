#include "kernels/device/probe.h"

namespace weft::kernels {

CudaDevices probe_cuda_devices() {
  return {.devices = {},
          .reason = "this is the cpu flavour; ./weft --flavor cuda builds the other"};
}

}  // namespace weft::kernels
