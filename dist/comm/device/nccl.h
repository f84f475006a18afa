// Ranks as processes with a GPU each, over NCCL.
//
//   CommunicatorPtr world = make_nccl_communicator(join_world(), Device{DeviceType::cuda,
//   local_rank()});
//
// NCCL moves bytes; sums are formed here, by the order of reduce_tree.h: a reduce_scatter sends
// each part straight to the rank that keeps it, where the device's kernels add the contributions. A
// rank sends what it would in a ring, and the bits are those of the other engines; NCCL's own
// reductions would add in an order that depends on its choice of algorithm, and round f16 and bf16
// at every hop.
//
// A communicator has a stream of its own. Collectives wait there for what the caller's stream
// holds; wait() makes the caller's stream wait for them, and not the thread. A thread watches those
// that are under way: an error that NCCL reports, or a deadline that passes, aborts the
// communicator, which frees whoever waits for the device, tells the other ranks through the host
// communicator, and is thrown by every later wait(). An abort that does not return ends the
// process.
//
// In the cuda flavour alone. The library is opened at first use: $CUDA_HOME, the loader's path, or
// python3's nvidia packages (kernels/device/library.h).
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
