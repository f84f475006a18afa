#include "core/device.h"

#include <charconv>

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
  bool valid = type == "cpu" || type == "cuda";
  device.type = type == "cuda" ? DeviceType::cuda : DeviceType::cpu;
  if (valid && colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
    valid = error == std::errc() && end == digits.data() + digits.size() && device.index >= 0;
  }
  WEFT_CHECK(valid, "unknown device \"{}\": expected cpu, cpu:N, cuda or cuda:N", text);
  return device;
}

}  // namespace weft
