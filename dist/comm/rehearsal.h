// Ranks that talk to nobody: the communication of a step that is rehearsed (kernels/rehearsal).
//
//   const kernels::Rehearsal rehearsal;
//   const CommunicatorPtr world = make_absent_world(0, 1024);
//   step(world);                               // as rank 0 of 1024
//   world->family_traffic().sent;              // the bytes that it would have sent
//
// Collectives end at once and leave their tensors as they are; their bytes are counted as
// host_communicator.h's algorithms send them. So one rank stands for all of a strategy whose ranks
// do the same.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// A world of `size` ranks, of which this one alone is there.
CommunicatorPtr make_absent_world(int rank, int size);

/// The ranks of `world`, among which integers alone travel: what announces a tensor arrives, and
/// the tensor does not.
CommunicatorPtr without_floats(CommunicatorPtr world);

}  // namespace weft::dist
