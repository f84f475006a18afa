// Ranks as processes, over MPI, which moves bytes only: the collectives, their order of summation
// and their deadlines are those of host_communicator.h. Open MPI makes no progress by itself: the
// communicator's thread polls, and sleeps between polls, since ranks may outnumber cores. Messages
// are cut into pieces of at most 2^28 bytes, MPI's counts being int.
//
// SIGTERM, which mpirun sends to the ranks that are left when one has failed, ends a rank at its
// next collective, or three seconds later; unless the program handles that signal itself.
//
// MPI is finalised when the program ends; after an error it is not, because finalising waits for
// the other ranks.
//
// A build on a machine without MPI has none of this: make_mpi_world() then throws Error.
#pragma once

#include <string_view>

#include "dist/comm/host_communicator.h"

namespace weft::dist {

/// The MPI that this was built with: "Open MPI", "MPICH", "unknown"; empty if none.
std::string_view mpi_library();

/// True in a process that mpirun, or srun with a plugin for MPI, has started as a rank. The only
/// task of a step of srun's is none: it may start ranks. Throws Error where their number is none.
bool is_mpi_rank();

struct MpiOptions {
  HostOptions host = HostOptions::from_environment();
  size_t largest_message = size_t{1} << 28;
};

/// The ranks of MPI_COMM_WORLD. Throws Error when MPI does not serve several threads. Sets the
/// number of OpenMP threads to this rank's share of the host's cores unless OMP_NUM_THREADS does.
CommunicatorPtr make_mpi_world(const MpiOptions& options = {});

/// This process's number among all that mpirun or srun has started, and their number, as their
/// variables say; 0 of 1 outside of ranks. These throw Error naming a variable that is no such
/// number.
int mpi_rank();
int mpi_size();
/// Among those of its host.
int mpi_local_rank();
int mpi_local_size();

}  // namespace weft::dist
