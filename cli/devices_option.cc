#include "cli/devices_option.h"

#include "cli/command.h"
#include "train/devices.h"

namespace weft::cli {
namespace {

constexpr int kMostDevices = 1 << 16;

bool asks_for_all(const std::string& text) { return text == "auto" || text == "-1"; }

}  // namespace

void add_devices_option(Command& command, std::string& text, const std::string& help,
                        const std::string& usual) {
  command.option("--devices", text, help + "; auto: all GPUs of the machine, or the CPU",
                 {.takes = "N", .usual = usual});
}

int device_count(const std::string& text, const Device& kind, int ranks) {
  if (text.empty()) return 0;
  return as_usage(
      [&] {
        const bool is_all = asks_for_all(text);
        const train::Devices devices = text;
        const bool is_count =
            devices.numbers.empty() && devices.count > 0 && devices.count <= kMostDevices;
        WEFT_CHECK(is_all || is_count, "expected a number from 1 to {}, or auto, got \"{}\"",
                   kMostDevices, text);
        return is_all && ranks > 0 ? ranks : devices.on(kind);
      },
      "--devices");
}

void check_counted(const std::string& text, const std::string& hosts_option) {
  if (!asks_for_all(text)) return;
  throw UsageError(
      fmt::format("--devices {}: all of this machine; with {} expected the number of them on all "
                  "hosts together",
                  text, hosts_option));
}

}  // namespace weft::cli
