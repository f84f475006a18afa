#include "kernels/device/launch.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace weft::kernels {
namespace {

/// Without being asked a kernel gets this much.
constexpr size_t kDefaultSharedBytes = 48 << 10;

bool wants_synchronous_launches() {
  static const bool wants = [] {
    const char* value = std::getenv("WEFT_CUDA_SYNC");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return wants;
}

void check(cudaError_t error, const LaunchConfig& config, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not be taken for the next op's
  fail(
      "{}: {}: {} (grid {} x {} x {}, block {} x {} x {}, cluster {} x {} x {}, {} bytes of shared "
      "memory)",
      config.kernel, what, cudaGetErrorString(error), config.grid.x, config.grid.y, config.grid.z,
      config.block.x, config.block.y, config.block.z, config.cluster.x, config.cluster.y,
      config.cluster.z, config.shared_bytes);
}

}  // namespace

void launch_on_device(const LaunchConfig& config, const void* kernel, void** arguments) {
  if (config.shared_bytes > kDefaultSharedBytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(config.shared_bytes)),
          config, "shared memory was refused");
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(config.stream);
  cudaLaunchAttribute attribute = {};
  if (config.cluster.x * config.cluster.y * config.cluster.z > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {config.cluster.x, config.cluster.y, config.cluster.z};
    launch.attrs = &attribute;
    launch.numAttrs = 1;
  }
  check(cudaLaunchKernelExC(&launch, kernel, arguments), config, "the launch failed");
  if (wants_synchronous_launches()) {
    check(cudaStreamSynchronize(launch.stream), config, "the kernel failed");
  }
}

}  // namespace weft::kernels
