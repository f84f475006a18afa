#include "kernels/device/probe.h"

#include <catch2/catch.hpp>

#include "tests/skip.h"

using namespace weft::kernels;

TEST_CASE("Probing gives devices or the reason why there are none") {
  const CudaDevices found = probe_cuda_devices();
  CHECK(found.devices.empty() == !found.reason.empty());
  const weft::Device first{weft::DeviceType::cuda, 0};
  CHECK_NOTHROW(require_usable({}));
  if (found.devices.empty()) {
    CHECK_THROWS_WITH(require_usable(first), "device cuda:0 is not available: " + found.reason);
    WEFT_SKIP("no CUDA device");
  }
  CHECK(is_usable(first) == found.devices[0].usable());
  for (const CudaDevice& device : found.devices) {
    INFO(device.name);
    CHECK(device.compute_capability >= 50);
    CHECK(device.memory_bytes > 0);
    CHECK(device.problem == "");
  }
}
