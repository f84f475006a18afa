// Ranks as processes without MPI, over TCP. Every group of ranks is a mesh of connections of its
// own, set up through a store (store.h); a rank that dies is seen at once by its closed
// connections. The collectives are those of host_communicator.h.
#pragma once

#include "dist/comm/host_communicator.h"
#include "dist/comm/processes/store.h"

namespace weft::dist {

/// Rank `rank` of `size`. Every rank calls it with the same store, and waits for the others, at
/// most for the timeout of `options`; `name` tells worlds of one store apart.
CommunicatorPtr make_tcp_world(std::shared_ptr<Store> store, int rank, int size,
                               const HostOptions& options = HostOptions::from_environment(),
                               const std::string& name = "world");

}  // namespace weft::dist
