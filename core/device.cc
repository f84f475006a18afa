#include "core/device.h"

#include <charconv>

#include "core/runtime.h"

namespace weft {

std::string_view name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

std::string to_string(Device device) {
  if (device == Device{}) return "cpu";
  return fmt::format("{}:{}", name(device.type), device.index);
}

Device parse_device(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view type = text.substr(0, colon);
  Device device;
  const bool is_emulated = type == "emulated";
  bool valid = type == "cpu" || type == "cuda" || is_emulated;
  device.type = type == "cpu" ? DeviceType::cpu : DeviceType::cuda;
  if (valid && colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
    valid = error == std::errc() && end == digits.data() + digits.size() && device.index >= 0;
  }
  WEFT_CHECK(valid,
             "unknown device \"{}\": expected cpu, cpu:N, cuda, cuda:N, emulated or emulated:N",
             text);
  WEFT_CHECK(!is_emulated || runtime::is_emulated(),
             "device {}: this program has no emulated GPU; ./weft links one in the host flavour "
             "where --device asks for it, //kernels:emulated into programs of your own",
             text);
  return device;
}

}  // namespace weft
