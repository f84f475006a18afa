// The communicators for ranks that compute on a device.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// A communicator of the same ranks for tensors on `device`, and on the CPU as before: NCCL where
/// it can be used and every rank has a device of its own, else through host memory, which rank 0
/// says on standard error. On the CPU `host` itself. Every rank calls it.
CommunicatorPtr on_device(CommunicatorPtr host, Device device);

/// Collectives on a device's tensors through host memory: where there is no NCCL, and its stand-in
/// on the emulator. A collective's input is copied to the host when it is called, and reaches the
/// device's tensor no sooner than somebody waits for it, on the stream that is current there; those
/// before it in the same communicator come with it. So a program that forgets to wait reads what
/// was there before, and one that changes an input while it is under way is told.
CommunicatorPtr make_staged_communicator(CommunicatorPtr host, Device device);

/// The device of a rank that is the local_rank-th of its host, of the kind of `asked`; ranks beyond
/// the number of devices share them.
Device device_of_rank(Device asked, int local_rank);

}  // namespace weft::dist
