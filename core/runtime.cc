// What is said of devices that are not there, whichever implementation is linked.
#include "core/runtime.h"

namespace weft {

void require_device(Device device) {
  if (device.type == DeviceType::cpu) return;
  const int count = runtime::device_count();
  WEFT_CHECK(count > 0, "device {} is not available: {}", device, runtime::no_device_reason());
  WEFT_CHECK(device.index < count, "device {} is not available: this machine shows {} CUDA {}",
             device, count, count == 1 ? "device, cuda:0" : "devices");
}

namespace runtime {
namespace {

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

}  // namespace

std::string explain_no_device(const DeviceQuery& query) {
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
