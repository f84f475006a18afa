#include "cli/device_option.h"

#include "cli/command.h"
#include "core/runtime.h"
#include "kernels/device/probe.h"

namespace weft::cli {

constexpr int kMostThreads = 1024;

void add_device_option(Command& command, std::string& text) {
  command.option(
      "--device", text,
      "Where to compute: cpu, cuda or cuda:N, or emulated, CUDA kernels on an emulated "
      "GPU, thousands of times slower than the CPU",
      {.takes = "DEVICE", .usual = "the first GPU that Weft's kernels run on, else cpu"});
}

void add_threads_option(Command& command, int& threads) {
  command.option("--threads", threads, "Threads that CPU kernels use",
                 {.check = in_range(1, kMostThreads), .usual = "one per core"});
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
