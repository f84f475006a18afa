// The communicator for ranks that compute on a device.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// A communicator of the same ranks for tensors on `device`, and on the CPU as before: NCCL where
/// it can be used and every rank has a device of its own, else through host memory, which rank 0
/// says on standard error. On the CPU `host` itself. Every rank calls it.
CommunicatorPtr on_device(CommunicatorPtr host, Device device);

/// The device of a rank that is the local_rank-th of its host, of the kind of `asked`; ranks beyond
/// the number of devices share them.
Device device_of_rank(Device asked, int local_rank);

}  // namespace weft::dist
