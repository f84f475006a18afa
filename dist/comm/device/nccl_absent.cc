// In flavours other than cuda.
#include "core/error.h"
#include "dist/comm/device/nccl.h"

namespace weft::dist {

std::string nccl_problem() { return "this program was built without NCCL"; }

CommunicatorPtr make_nccl_communicator(CommunicatorPtr, Device, const NcclOptions&) {
  fail("NCCL cannot be used: {}", nccl_problem());
}

}  // namespace weft::dist
