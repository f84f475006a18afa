// weft devices: where tensors can live on this machine.

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "core/parallel.h"
#include "kernels/device/probe.h"

namespace weft::cli {
namespace {

int devices(bool as_json) {
  const kernels::CudaDevices cuda = kernels::probe_cuda_devices();
  if (as_json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    list.push_back({{"device", "cpu"}, {"usable", true}, {"threads", num_threads()}});
    for (const kernels::CudaDevice& device : cuda.devices) {
      list.push_back({{"device", fmt::format("cuda:{}", device.index)},
                      {"usable", device.usable()},
                      {"name", device.name},
                      {"compute_capability", device.compute_capability},
                      {"memory_bytes", device.memory_bytes},
                      {"multiprocessors", device.multiprocessors},
                      {"problem", device.problem}});
    }
    fmt::print("{}\n",
               nlohmann::ordered_json({{"devices", list}, {"no_cuda", cuda.reason}}).dump());
    return 0;
  }
  fmt::print("cpu     {} threads\n", num_threads());
  for (const kernels::CudaDevice& device : cuda.devices) {
    fmt::print("cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB: {}\n",
               device.index, device.name, device.compute_capability / 10,
               device.compute_capability % 10, device.multiprocessors,
               static_cast<double>(device.memory_bytes) / (1 << 30),
               device.usable() ? "usable" : "not usable: " + device.problem);
  }
  if (cuda.devices.empty()) fmt::print("cuda    none: {}\n", cuda.reason);
  return 0;
}

}  // namespace

void add_devices(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("devices", "List the devices and whether our kernels run on them");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([&action, as_json] { action = [=] { return devices(*as_json); }; });
}

}  // namespace weft::cli
