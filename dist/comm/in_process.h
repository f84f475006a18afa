// Ranks as threads of one process: for tests, debuggers and DataParallel.
//
//   run_ranks(4, [](Communicator& world) { ...; world.all_reduce(x).wait(); });
//
// An exception of one rank ends the others at their next collective; the first is rethrown.
#pragma once

#include <functional>
#include <vector>

#include "dist/comm/host_communicator.h"

namespace weft::dist {

struct InProcessOptions {
  HostOptions host = HostOptions::from_environment();
  // Of each exchange; 0: as fast as memory. See Transport::slow_down.
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// Communicators of `ranks` threads that are yet to be started: element r is for the thread that
/// plays rank r.
std::vector<CommunicatorPtr> make_in_process_world(int ranks, const InProcessOptions& options = {});

/// Calls body(communicator) on `ranks` threads and waits for all. Each runs its kernels on its
/// share of the caller's OpenMP threads, at least one.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const InProcessOptions& options = {});

}  // namespace weft::dist
