// The CUDA devices of this machine, and whether the kernels compiled into this program run on them.
//
// Asking is safe anywhere: without a driver, or in a build without CUDA, the answer is a reason.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/device.h"

namespace weft::kernels {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  size_t memory_bytes = 0;
  int multiprocessors = 0;
  /// Why our kernels do not run on it, by a test kernel whose answer is known; empty where they do,
  /// and where none was run.
  std::string problem;

  bool usable() const { return problem.empty(); }
};

struct CudaDevices {
  std::vector<CudaDevice> devices;
  /// Why there are none; empty otherwise.
  std::string reason;
};

/// What the driver says of the devices: takes no memory of any.
CudaDevices find_cuda_devices();
/// Runs a test kernel on a device, whose memory this process then takes a part of. Returns the
/// problem; empty when its answer was right.
std::string probe_cuda_device(int index);
/// Every device and its problem.
CudaDevices probe_cuda_devices();

/// Throws Error unless kernels run on the device: it names what is missing and what else to do. The
/// CPU is always usable.
void require_usable(Device device);
/// The same of a CUDA device among those that were found.
void require_usable(Device device, const CudaDevices& found);
bool is_usable(Device device);

/// What a device calls itself, whose measurements these are: "NVIDIA H200", "AMD EPYC 9R14",
/// "emulated".
std::string device_name(Device device);
/// The version of a CUDA device's driver, "580.65.06"; empty where there is none to tell.
std::string driver_version(Device device);

}  // namespace weft::kernels
