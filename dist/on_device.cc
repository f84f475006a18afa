#include "dist/on_device.h"

#include "core/runtime.h"
#include "dist/nccl.h"
#include "dist/staged.h"

namespace weft::dist {

CommunicatorPtr on_device(CommunicatorPtr host, Device device) {
  if (device.type == DeviceType::cpu) return host;
  // All of them or none: what one rank lacks none can use.
  const Tensor usable = Tensor::from(std::vector<int32_t>{nccl_problem().empty()}, {1});
  host->all_reduce(usable, ReduceOp::kMin).wait();
  if (usable.data<int32_t>()[0] == 0) return make_staged_communicator(std::move(host), device);
  return make_nccl_communicator(std::move(host), device);
}

Device device_of_rank(Device asked, int local_rank) {
  if (asked.type == DeviceType::cpu) return asked;
  require_device(asked);
  return {asked.type, local_rank % runtime::device_count()};
}

}  // namespace weft::dist
