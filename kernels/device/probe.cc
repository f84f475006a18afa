#include "kernels/device/probe.h"

#include <fstream>
#include <sstream>

#include "core/runtime.h"

namespace weft::kernels {

CudaDevices probe_cuda_devices() {
  CudaDevices found = find_cuda_devices();
  for (CudaDevice& device : found.devices) {
    if (device.usable()) device.problem = probe_cuda_device(device.index);
  }
  return found;
}

void require_usable(Device device) {
  require_device(device);
  if (device.type != DeviceType::cuda) return;
  // A process of a machine with many devices takes memory of its own alone.
  CudaDevices found = find_cuda_devices();
  CudaDevice& one = found.devices.at(device.index);
  if (one.usable()) one.problem = probe_cuda_device(device.index);
  require_usable(device, found);
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

std::string device_name(Device device) {
  if (device.type == DeviceType::cuda) {
    for (const CudaDevice& gpu : find_cuda_devices().devices) {
      if (gpu.index == device.index) return gpu.name;
    }
    return to_string(device);
  }
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "cpu";
}

std::string driver_version(Device device) {
  if (device.type == DeviceType::cpu) return {};
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:11:02 UTC 2025"
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool is_version = word.find('.') != std::string::npos &&
                            word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return {};
}

}  // namespace weft::kernels
