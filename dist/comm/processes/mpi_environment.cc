// What the variables say that mpirun and srun set.
#include <initializer_list>

#include "dist/comm/processes/mpi.h"
#include "dist/comm/processes/slurm.h"

namespace weft::dist {
namespace {

/// Of the first of these that is set. Throws Error where that is no number from `least` on.
int number(std::initializer_list<const char*> names, int least, int otherwise) {
  for (const char* name : names) {
    if (variable(name)) return variable_number(name, least, kMostRanks);
  }
  return otherwise;
}

}  // namespace

bool is_mpi_rank() {
  if (variable("OMPI_COMM_WORLD_SIZE")) return true;  // of Open MPI's mpirun
  // Of srun and others that speak PMIx; of MPICH's mpirun, and of srun.
  const bool has_place = variable("PMIX_RANK") || variable("PMI_RANK");
  const bool is_task = variable("SLURM_STEP_ID");
  return has_place && (!is_task || mpi_size() > 1);
}

int mpi_rank() {
  return number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0, 0);
}
int mpi_size() {
  return number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1, 1);
}
int mpi_local_rank() {
  return number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0, 0);
}
int mpi_local_size() {
  const int said = number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1, 0);
  if (said > 0) return said;
  if (const std::optional<int> tasks = slurm_local_size()) return *tasks;
  return number({"SLURM_NTASKS_PER_NODE"}, 1, 1);
}

}  // namespace weft::dist
