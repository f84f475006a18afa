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

void require_device(Device device) {
  if (device.type == DeviceType::cpu) return;
  const int count = runtime::device_count();
  WEFT_CHECK(count > 0, "device {} is not available: {}", device, runtime::no_device_reason());
  WEFT_CHECK(device.index < count, "device {} is not available: this machine shows {} CUDA {}",
             device, count, count == 1 ? "device, cuda:0" : "devices");
}

namespace runtime {
std::string explain_no_device(const DeviceQuery& query) {
  const auto version = [](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  };
  if (query.driver == 0) return "no NVIDIA driver is loaded; install one, or use --device cpu";
  if (query.refused_as_old || query.driver / 1000 < query.toolkit / 1000) {
    return fmt::format(
        "the NVIDIA driver is too old: it serves CUDA {}, this program was built with {}; update "
        "the driver, build with an older toolkit ($CUDA_HOME), or use --device cpu",
        version(query.driver), version(query.toolkit));
  }
  if (query.error.empty()) {
    return "the driver shows no device; see nvidia-smi and $CUDA_VISIBLE_DEVICES, or use --device "
           "cpu";
  }
  return query.error + "; see nvidia-smi, or use --device cpu";
}

}  // namespace runtime
}  // namespace weft
