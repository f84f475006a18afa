// Collectives on a device's tensors through host memory: where there is no NCCL, and its stand-in
// on the emulator.
//
// A collective's input is copied to the host when it is called, travels there
// (host_communicator.h), and reaches the device's tensor no sooner than somebody waits for it, on
// the stream that is current there; those before it in the same communicator come with it. So a
// program that forgets to wait reads what was there before, and one that changes an input while it
// is under way is told.
#pragma once

#include "dist/comm/device/device_communicator.h"

namespace weft::dist {

/// On top of a host communicator, for tensors on `device`. Takes the place of the host communicator
/// for tensors on the CPU.
CommunicatorPtr make_staged_communicator(CommunicatorPtr host, Device device);

}  // namespace weft::dist
