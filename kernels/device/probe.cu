#include <cuda_runtime.h>

#include "core/runtime.h"
#include "kernels/device/probe.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 32;

/// out[i] = 100 * (10 * compute capability of the code that runs) + i: says that the launch, the
/// memory and one of our architectures work.
__global__ void __launch_bounds__(kThreads) probe_kernel(int* out) {
#ifdef __CUDA_ARCH__
  out[threadIdx.x] = __CUDA_ARCH__ * 10 + static_cast<int>(threadIdx.x);
#endif
}

}  // namespace

std::string probe_cuda_device(int index) {
  int* out = nullptr;
  int host[kThreads] = {}, previous = 0;
  cudaGetDevice(&previous);
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaMalloc(&out, sizeof(host));
  if (error == cudaSuccess) {
    probe_kernel<<<1, kThreads>>>(out);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
  cudaFree(out);
  cudaGetLastError();  // not an error of what this thread does next, on another device
  runtime::return_to_device(previous);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  for (int i = 0; i < kThreads; ++i) {
    if (host[i] != host[0] + i || host[0] < 5000) return "the test kernel gave a wrong answer";
  }
  return "";
}

CudaDevices find_cuda_devices() {
  CudaDevices result;
  const int count = runtime::device_count();
  result.reason = runtime::no_device_reason();
  for (int index = 0; index < count; ++index) {
    CudaDevice device;
    device.index = index;
    cudaDeviceProp properties;
    const cudaError_t failed = cudaGetDeviceProperties(&properties, index);
    if (failed == cudaSuccess) {
      device.name = properties.name;
      device.compute_capability = 10 * properties.major + properties.minor;
      device.memory_bytes = properties.totalGlobalMem;
      device.multiprocessors = properties.multiProcessorCount;
    } else {
      device.problem = cudaGetErrorString(failed);
    }
    result.devices.push_back(device);
  }
  return result;
}

}  // namespace weft::kernels
