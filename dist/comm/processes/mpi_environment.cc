// What the variables say that mpirun and srun set.
#include <cstdlib>
#include <initializer_list>

#include "dist/comm/processes/mpi.h"
#include "dist/comm/processes/slurm.h"

namespace weft::dist {
namespace {

int number(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return otherwise;
}

}  // namespace

bool is_mpi_rank() {
  // Of Open MPI; of srun and others that speak PMIx; of MPICH.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

int mpi_rank() {
  return number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
}
int mpi_size() { return number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, 1); }
int mpi_local_rank() {
  return number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0);
}
int mpi_local_size() {
  const int said = number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 0);
  return said > 0 ? said : slurm_local_size().value_or(number({"SLURM_NTASKS_PER_NODE"}, 1));
}

}  // namespace weft::dist
