// weft devices: where tensors can live on this machine.

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/json_line.h"
#include "core/parallel.h"
#include "kernels/device/probe.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

std::vector<std::string_view> precisions_of(const train::Capabilities& device) {
  std::vector<std::string_view> names;
  for (const train::Precision& precision : train::precisions()) {
    if (train::has(device, precision)) names.push_back(precision.name);
  }
  return names;
}

train::Capabilities capabilities_of(const kernels::CudaDevice& device) {
  return train::capabilities_of_compute_capability(device.name, device.compute_capability);
}

int devices(bool as_json) {
  const train::Capabilities cpu = train::capabilities_of(Device{});
  const bool has_bf16 = train::cpu_has_bf16_instructions();
  const kernels::CudaDevices cuda = kernels::probe_cuda_devices();
  if (as_json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    list.push_back({{"device", "cpu"},
                    {"usable", true},
                    {"threads", num_threads()},
                    {"precisions", precisions_of(cpu)},
                    {"bf16_instructions", has_bf16}});
    for (const kernels::CudaDevice& device : cuda.devices) {
      list.push_back({{"device", fmt::format("cuda:{}", device.index)},
                      {"usable", device.usable()},
                      {"name", device.name},
                      {"compute_capability", device.compute_capability},
                      {"memory_bytes", device.memory_bytes},
                      {"multiprocessors", device.multiprocessors},
                      {"precisions", precisions_of(capabilities_of(device))},
                      {"problem", device.problem}});
    }
    print_json({{"devices", list}, {"no_cuda", cuda.reason}});
    return 0;
  }
  fmt::print("cpu     {} threads\n", num_threads());
  fmt::print("        precisions: {}; bf16 products {}, tf32, fp16 and fp8 simulated\n",
             fmt::join(precisions_of(cpu), ", "), has_bf16 ? "in hardware" : "emulated");
  for (const kernels::CudaDevice& device : cuda.devices) {
    fmt::print("cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB: {}\n",
               device.index, device.name, device.compute_capability / 10,
               device.compute_capability % 10, device.multiprocessors,
               static_cast<double>(device.memory_bytes) / (1 << 30),
               device.usable() ? "usable" : "not usable: " + device.problem);
    fmt::print("        precisions: {}\n", fmt::join(precisions_of(capabilities_of(device)), ", "));
  }
  if (cuda.devices.empty()) fmt::print("cuda    none: {}\n", cuda.reason);
  return 0;
}

}  // namespace

void add_devices(Command& app, Action& action) {
  const auto [command, as_json] = add_command<bool>(
      app, action, devices, "devices", "List the devices, and whether Weft's kernels run on them",
      kDeviceCommands);
  command.flag("--json", as_json, kJsonObject);
}

}  // namespace weft::cli
