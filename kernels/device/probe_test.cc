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

TEST_CASE("Devices are found by the names that probing gives them") {
  const CudaDevices found = find_cuda_devices(), probed = probe_cuda_devices();
  CHECK(found.reason == probed.reason);
  REQUIRE(found.devices.size() == probed.devices.size());
  for (size_t i = 0; i < found.devices.size(); ++i) {
    CHECK(found.devices[i].name == probed.devices[i].name);
    CHECK(found.devices[i].problem == "");
    CHECK(probed.devices[i].problem == probe_cuda_device(found.devices[i].index));
  }
}

TEST_CASE("A GPU older than the architectures that were built is refused by name") {
  const CudaDevices found{
      .devices = {{.index = 0, .name = "NVIDIA H200", .compute_capability = 90},
                  {.index = 1,
                   .name = "Tesla V100",
                   .compute_capability = 70,
                   .problem = "no kernel image is available for execution on the device"}}};
  CHECK_NOTHROW(require_usable({weft::DeviceType::cuda, 0}, found));
  CHECK_THROWS_WITH(require_usable({weft::DeviceType::cuda, 1}, found),
                    "device cuda:1 (Tesla V100, compute capability 7.0) does not run our kernels: "
                    "no kernel image is available for execution on the device; they are built for "
                    "compute capability 8.0 and later. Use --device cpu");
}
