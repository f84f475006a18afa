// A build on a machine without MPI.
#include "core/error.h"
#include "dist/comm/processes/mpi.h"

namespace weft::dist {

std::string_view mpi_library() { return ""; }

CommunicatorPtr make_mpi_world(const MpiOptions&) {
  WEFT_FAIL("this Weft was built without MPI: start ranks with weft launch, or with torchrun");
}

}  // namespace weft::dist
