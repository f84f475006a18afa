// The collectives of ranks on CPUs, written once over a Transport.
//
// reduce_scatter sends each part straight to the rank that keeps it, in segments, and combines the
// N contributions there (reduce_tree.h); all_gather sends each part straight to every other rank;
// all_reduce is the one after the other. That is one round instead of a ring's N - 1, and for n
// bytes that N divides a rank sends the same:
//
//   all_reduce 2 (N-1)/N n,  reduce_scatter and all_gather (N-1)/N n,  all_to_all (N-1)/N n
//
// broadcast goes down a binomial tree. One thread per communicator runs its operations in order.
// Every message carries its collective's kind and number, so that a rank that runs another is an
// error, never another result. With WEFT_DIST_DEBUG=1 the ranks compare all of what they are about
// to run first, dtypes, shapes and parts, too.
#pragma once

#include <memory>

#include "dist/comm/communicator.h"
#include "dist/comm/fault.h"
#include "dist/comm/transport.h"

namespace weft::dist {

struct HostOptions {
  double timeout_seconds = 60;
  bool compares_operations = false;
  int64_t segment_bytes = 256 << 10;  // of a reduce_scatter, per peer
  Fault fault;
  int world_rank = -1;  // of a group: this rank's in the world

  /// With WEFT_DIST_TIMEOUT (seconds), WEFT_DIST_DEBUG and WEFT_DIST_FAULT applied. Throws Error
  /// for a bad value.
  static HostOptions from_environment();
};

CommunicatorPtr make_host_communicator(std::string name, std::unique_ptr<Transport> transport,
                                       const HostOptions& options,
                                       std::shared_ptr<FlightRecorder> recorder);

}  // namespace weft::dist
