// Joining the ranks that something else has started.
//
//   if (dist::is_rank()) world = dist::join_world();   // else this program may start ranks itself
//
// A process is a rank when mpirun or srun has started it (mpi.h), or when torchrun or anybody else
// has set torchrun's variables; ranks of the latter kind talk over TCP (tcp.h).
//
//   RANK, WORLD_SIZE          this rank of so many
//   MASTER_ADDR, MASTER_PORT  where rank 0 serves the store through which the ranks find each other
//   LOCAL_RANK, LOCAL_WORLD_SIZE  this rank among those of its host; 0 of 1 when left out
//   WEFT_STORE=DIRECTORY      a file store instead of rank 0's: an empty directory that all share
#pragma once

#include "dist/comm/host_communicator.h"

namespace weft::dist {

/// Throws Error where some of torchrun's variables are set and others that they need are not.
bool is_rank();
/// The world of this rank; see is_rank(). Sets the number of OpenMP threads to this rank's share of
/// the host's cores unless OMP_NUM_THREADS does. Throws Error naming a variable that is missing or
/// out of range, a port that is in use, and ranks that do not come.
CommunicatorPtr join_world(const HostOptions& options = HostOptions::from_environment());

/// This rank's number among those of its host, and their number; 0 of 1 outside of ranks.
int local_rank();
int local_size();

}  // namespace weft::dist
