// Joining the ranks that something else has started.
//
//   if (dist::is_rank()) world = dist::join_world();   // else this program may start ranks itself
//
// A process is a rank when mpirun or srun has started it (mpi.h), when torchrun or anybody else has
// set torchrun's variables, or when srun has started it without a plugin for MPI (slurm.h); ranks
// of the latter kinds talk over TCP (tcp.h). Of several the first holds.
//
//   RANK, WORLD_SIZE          this rank of so many
//   MASTER_ADDR, MASTER_PORT  where rank 0 serves the store through which the ranks find each other
//                             (of srun's tasks, a place that follows from Slurm's variables)
//   LOCAL_RANK, LOCAL_WORLD_SIZE  this rank among those of its host; what is left out is as Slurm
//                             says, or else 0 of 1
//   WEFT_STORE=DIRECTORY      a file store instead of rank 0's: an empty directory that all share
#pragma once

#include "dist/comm/host_communicator.h"
#include "dist/comm/processes/rank_environment.h"

namespace weft::dist {

bool is_rank();
/// True in one of several tasks that srun has started, with a plugin for MPI or without, which
/// neither mpirun nor torchrun has made a rank.
bool is_task_of_srun();
/// The world of this rank; see is_rank(). Sets the number of OpenMP threads to this rank's share of
/// the host's cores unless OMP_NUM_THREADS does. Throws Error naming a variable that is missing or
/// out of range, a port that is in use, and ranks that do not come.
CommunicatorPtr join_world(const HostOptions& options = HostOptions::from_environment());

/// This rank's place; 0 of 1 outside of ranks. Throws Error naming a variable that is wrong.
RankPlace rank_place();
/// Its number among those of its host, and their number.
int local_rank();
int local_size();
/// Sets torchrun's variables of this rank, for the program that it is about to become; those that
/// make it a rank stay as they are.
void set_rank_environment();

}  // namespace weft::dist
