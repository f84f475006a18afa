// NCCL's functions (nccl_api.h) on emulated devices, for ranks that are threads of one process.
//
// Sums go around rings, as NCCL's do: rank r's part begins at rank r + 1, and every rank on the way
// adds its own and rounds to the dtype. So they differ from the order of reduce_tree.h, and a part
// that one rank keeps from the whole that all have. What NCCL leaves undefined or hangs on is an
// error here that names it: ranks whose calls do not match, memory of another device or none, an
// output that overlaps its input without being in place, a call while the one before is under way,
// memory that is registered with the communicator on some ranks and not on others.
//
// A call is under way until the other ranks have come, since emulated streams run their work as it
// is submitted. A send ends at once: it is buffered, as NCCL's are up to the size of its pipes.
#pragma once

#include <cstdint>

#include "dist/comm/device/nccl_api.h"

namespace weft::dist {

const nccl::Api& nccl_stand_in();

/// Of all ranks of all communicators, since the last reset.
struct NcclCounts {
  int64_t launches = 0;      // calls, a group as one
  int64_t sent = 0;          // bytes that went from a rank to another
  int64_t registered = 0;    // bytes in use that are registered, now
  int64_t unregistered = 0;  // calls with memory that is not registered with their communicator
};
NcclCounts nccl_stand_in_counts();
void reset_nccl_stand_in_counts();

}  // namespace weft::dist
