// Which device a rank computes on.
#pragma once

#include "core/device.h"
#include "core/runtime.h"

namespace weft::dist {

/// The device of a rank that is the local_rank-th of its host, of the kind of `asked`; ranks beyond
/// the number of devices share them.
inline Device device_of_rank(Device asked, int local_rank) {
  if (asked.type == DeviceType::cpu) return asked;
  require_device(asked);
  return {asked.type, local_rank % runtime::device_count()};
}

}  // namespace weft::dist
