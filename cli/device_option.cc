#include "cli/device_option.h"

#include "cli/command.h"
#include "core/runtime.h"
#include "kernels/device/probe.h"

namespace weft::cli {

void add_device_option(CLI::App& command, std::string& text) {
  command.add_option(
      "--device", text,
      "cpu, cuda or cuda:N; default: the first GPU that our kernels run on, else cpu");
}

Device chosen_device(const std::string& text) {
  if (text.empty()) {
    const Device gpu{DeviceType::cuda, 0};
    // An emulated device is chosen by name alone: it is thousands of times slower than the CPU.
    const bool exists = runtime::device_count() > 0 && !runtime::is_emulated();
    return exists && kernels::is_usable(gpu) ? gpu : Device{};
  }
  const Device device = as_usage([&] { return parse_device(text); }, "--device");
  kernels::require_usable(device);
  return device;
}

}  // namespace weft::cli
