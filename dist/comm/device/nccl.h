// Ranks as processes with a GPU each, over NCCL.
//
//   const Device device{DeviceType::cuda, local_rank()};
//   CommunicatorPtr world = make_nccl_communicator(join_world(), device);
//
// NCCL moves bytes; sums are formed here, in the order of reduce_tree.h, so the bits are those of
// the other engines: NCCL's own reductions would add in an order that depends on its choice of
// algorithm, and round f16 and bf16 at every hop.
//
// A communicator has a stream of its own. Collectives wait there for what the caller's stream
// holds; wait() makes the caller's stream wait for them, and not the thread. A thread watches those
// under way: an error that NCCL reports, or a deadline that passes, aborts the communicator, tells
// the other ranks through the host communicator, and is thrown by every later wait(). An abort that
// does not return ends the process.
//
// In the cuda flavour alone; the library is opened at first use (kernels/device/library.h).
#pragma once

#include <string>

#include "dist/comm/device/device_communicator.h"
#include "dist/comm/host_communicator.h"

namespace weft::dist {

/// Why NCCL cannot be used; empty when it can.
std::string nccl_problem();

struct NcclOptions {
  double timeout_seconds = HostOptions::from_environment().timeout_seconds;
  int64_t segment_bytes = int64_t{8} << 20;  // of a reduce_scatter, per peer
};

/// Every rank of `host` calls it, with the device it computes on. Throws Error when NCCL cannot be
/// used, and when the ranks do not come together before the deadline.
CommunicatorPtr make_nccl_communicator(CommunicatorPtr host, Device device,
                                       const NcclOptions& options = {});

}  // namespace weft::dist
