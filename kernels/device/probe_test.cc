#include "kernels/device/probe.h"

#include <catch2/catch.hpp>

#include "tests/skip.h"

using namespace weft::kernels;

TEST_CASE("Probing gives devices or the reason why there are none") {
  const CudaDevices found = probe_cuda_devices();
  CHECK(found.devices.empty() == !found.reason.empty());
  if (found.devices.empty()) WEFT_SKIP("no CUDA device");
  for (const CudaDevice& device : found.devices) {
    INFO(device.name);
    CHECK(device.compute_capability >= 50);
    CHECK(device.memory_bytes > 0);
    CHECK(device.problem == "");
  }
}
