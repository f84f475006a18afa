// The communicators for ranks that compute on a device.
#pragma once

#include <string>

#include "dist/comm/communicator.h"
#include "dist/comm/device/device_of_rank.h"  // IWYU pragma: export

namespace weft::dist {

/// Who adds what ranks on devices hold: NCCL, in an order of its choice, or our kernels in the one
/// order of summation (reduce_tree.h), with the CPU's bits.
enum class Collectives : uint8_t { kNccl, kExact };
/// "nccl" or "exact"; throws Error for anything else.
Collectives parse_collectives(const std::string& text);

/// A communicator of the same ranks for tensors on `device`, and on the CPU as before: NCCL where
/// it can be used and every rank has a device of its own, else through host memory, which rank 0
/// says on standard error. On the CPU `host` itself. Only NCCL can add in another order than the
/// exact one. Every rank calls it.
CommunicatorPtr on_device(CommunicatorPtr host, Device device,
                          Collectives collectives = Collectives::kNccl);

/// Memory that comes and goes is given out again; that of a model's whole life goes back at once.
enum class BufferLife : uint8_t { kComesAndGoes, kStays };

/// n elements on `device`, uninitialised, for collectives of `group` that come again and again, as
/// on DDP's buckets and FSDP's units: where NCCL serves the group, memory from ncclMemAlloc that is
/// registered with it, which spares NCCL copies to memory of its own. The device's allocator does
/// not count it. A collective takes such memory on every rank of the group or on none, for its
/// input and its output: every rank calls it, in one order.
Tensor buffer_for(Communicator& group, int64_t n, DType dtype, Device device,
                  BufferLife life = BufferLife::kComesAndGoes);

/// Collectives on a device's tensors through host memory: where there is no NCCL, and its stand-in
/// on the emulator. A collective's input is copied to the host when it is called, and reaches the
/// device's tensor no sooner than somebody waits for it, on the stream that is current there; those
/// before it in the same communicator come with it. So a program that forgets to wait reads what
/// was there before, and one that changes an input while it is under way is told.
CommunicatorPtr make_staged_communicator(CommunicatorPtr host, Device device);

}  // namespace weft::dist
