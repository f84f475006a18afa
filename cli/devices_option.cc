#include "cli/devices_option.h"

#include "cli/command.h"
#include "train/devices.h"

namespace weft::cli {

void add_devices_option(Command& command, std::string& text, const std::string& help) {
  command.option("--devices", text, help + "; auto: all GPUs of the machine, or the CPU",
                 {.takes = "N", .usual = "1"});
}

int device_count(const std::string& text, const Device& kind, int ranks) {
  if (text.empty()) return 0;
  return as_usage(
      [&] {
        const bool is_all = text == "auto" || text == "-1";
        const train::Devices devices = text;
        WEFT_CHECK(is_all || (devices.numbers.empty() && devices.count > 0),
                   "expected a positive number, or auto, got \"{}\"", text);
        return is_all && ranks > 0 ? ranks : devices.on(kind);
      },
      "--devices");
}

}  // namespace weft::cli
