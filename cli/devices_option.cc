#include "cli/devices_option.h"

#include <charconv>

#include "cli/command.h"
#include "train/devices.h"

namespace weft::cli {
namespace {

constexpr int kMostDevices = 1 << 16;

}  // namespace

bool asks_for_all(const std::string& text) { return text == "auto" || text == "-1"; }

void add_devices_option(Command& command, std::string& text, const std::string& help,
                        const std::string& usual) {
  command.option("--devices", text, help + "; auto: all GPUs of the machine, or the CPU",
                 {.check = not_empty(), .takes = "N", .usual = usual});
}

int device_count(const std::string& text, const Device& kind, int ranks) {
  if (text.empty()) return 0;
  return as_usage(
      [&] {
        if (asks_for_all(text)) return ranks > 0 ? ranks : train::Devices(text).on(kind);
        int count = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, count);
        WEFT_CHECK(error == std::errc() && rest == end && count > 0 && count <= kMostDevices,
                   "expected a number from 1 to {}, or auto, got \"{}\"", kMostDevices, text);
        return count;
      },
      "--devices");
}

void check_counted(const std::string& text, const std::string& hosts_option) {
  check_usage(!asks_for_all(text),
              "--devices {}: all of this machine; with {} expected the number of them on all hosts "
              "together",
              text, hosts_option);
}

}  // namespace weft::cli
