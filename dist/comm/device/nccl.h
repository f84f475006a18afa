// Ranks as processes with a GPU each, over NCCL.
//
//   const Device device{DeviceType::cuda, local_rank()};
//   CommunicatorPtr world = make_nccl_communicator(join_world(), device);
//
// Sums are NCCL's own, or with Collectives::kExact ours. NCCL's add in an order that depends on its
// choice of algorithm, and round f16 and bf16 at every hop: among N ranks a sum of x is off by at
// most (N - 1) u sum |x|, a mean by another two roundings. What it saves are the kernels that add,
// and memory: one launch, in place, in the switch where NCCL finds that it can (NVLS). With kExact
// NCCL moves bytes, and the device's kernels add in the order of reduce_tree.h: the bits of the
// other engines. Maxima and minima always go that way, since NaN must win in them.
//
// A communicator has a stream of its own. Collectives wait there for what the caller's stream
// holds; wait() makes the caller's stream wait for them, and not the thread. A thread watches those
// under way: an error that NCCL reports, or a deadline that passes, aborts the communicator, tells
// the other ranks through the host communicator, and is thrown by every later wait(). An abort that
// does not return ends the process.
//
// The library is opened at first use (kernels/device/library.h).
#pragma once

#include <string>

#include "dist/comm/device/device_communicator.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/host_communicator.h"

namespace weft::dist {

namespace nccl {
struct Api;  // nccl_api.h
}

/// Why NCCL cannot be used; empty when it can.
std::string nccl_problem();

struct NcclOptions {
  double timeout_seconds = HostOptions::from_environment().timeout_seconds;
  Collectives collectives = Collectives::kNccl;
  int64_t segment_bytes = int64_t{8} << 20;  // of an exact reduce_scatter, per peer
  const nccl::Api* api = nullptr;            // a stand-in; null: the library's
};

/// Every rank of `host` calls it, with the device it computes on. Throws Error when NCCL cannot be
/// used, and when the ranks do not come together before the deadline.
CommunicatorPtr make_nccl_communicator(CommunicatorPtr host, Device device,
                                       const NcclOptions& options = {});

}  // namespace weft::dist
