// Where there is no NCCL to compile against: flavours other than cuda, toolkits without its header.
#if !defined(WEFT_CUDA_FLAVOR) || !__has_include(<nccl.h>)

#include "core/error.h"
#include "dist/nccl.h"

namespace weft::dist {

std::string nccl_problem() { return "this program was built without NCCL"; }

CommunicatorPtr make_nccl_communicator(CommunicatorPtr, Device, const NcclOptions&) {
  fail("NCCL cannot be used: {}", nccl_problem());
}

}  // namespace weft::dist

#endif
