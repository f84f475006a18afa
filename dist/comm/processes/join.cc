#include "dist/comm/processes/join.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/parallel.h"
#include "dist/comm/processes/mpi.h"
#include "dist/comm/processes/slurm.h"
#include "dist/comm/processes/tcp.h"

namespace weft::dist {
namespace {

bool has_torchrun_variables() { return variable("RANK") && variable("WORLD_SIZE"); }

/// A build without MPI does without where the other variables say enough.
bool joins_over_mpi() {
  const bool has_others = has_torchrun_variables() || is_slurm_rank();
  return is_mpi_rank() && !(mpi_library().empty() && has_others);
}

RankPlace torchrun_place() {
  RankPlace place;
  place.size = variable_number("WORLD_SIZE", 1, kMostRanks);
  place.rank = variable_number("RANK", 0, place.size - 1);
  const bool has_local_size = variable("LOCAL_WORLD_SIZE");
  if (has_local_size) place.local_size = variable_number("LOCAL_WORLD_SIZE", 1, place.size);
  const int most = has_local_size ? place.local_size : place.size;
  place.local_rank = variable("LOCAL_RANK") ? variable_number("LOCAL_RANK", 0, most - 1)
                                            : std::min(mpi_local_rank(), most - 1);
  // A number says that there are so many before it.
  if (!has_local_size) {
    place.local_size = std::min(place.size, std::max(mpi_local_size(), place.local_rank + 1));
  }
  return place;
}

MeetingPoint usual_meeting_point(const RankPlace& place) {
  return meeting_point({.address = place.is_on_one_host() ? "127.0.0.1" : slurm_first_host(),
                        .port = is_slurm_rank() ? slurm_port() : kUsualPort});
}

MeetingPoint torchrun_meeting_point() {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    WEFT_CHECK(variable(name), "RANK and WORLD_SIZE are set, but {} is not", name);
  }
  MeetingPoint meeting = meeting_point();
  // torchrun's agent serves a store of its own at that port, and says so.
  const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (agent && std::strcmp(agent, "True") == 0) meeting.port += meeting.port == 65535 ? -1 : 1;
  return meeting;
}

std::shared_ptr<Store> environment_store(const RankPlace& place, double timeout) {
  if (const char* directory = variable("WEFT_STORE")) return make_file_store(directory, timeout);
  const MeetingPoint meeting =
      has_torchrun_variables() ? torchrun_meeting_point() : usual_meeting_point(place);
  return make_tcp_store({.host = meeting.address,
                         .port = meeting.port,
                         .serves = place.rank == 0,
                         .timeout_seconds = timeout});
}

}  // namespace

bool is_rank() {
  if (is_mpi_rank() || has_torchrun_variables() || is_slurm_rank()) return true;
  // One of the two makes no rank, and would else be a whole run of its own on each device.
  const auto refuse_alone = [](const char* name, int usual, const char* other) {
    if (!variable(name) || variable_number(name, 0, kMostRanks) == usual) return;
    WEFT_FAIL("{} is {}, but {} is not set", name, variable(name), other);
  };
  refuse_alone("WORLD_SIZE", 1, "RANK");
  refuse_alone("RANK", 0, "WORLD_SIZE");
  return false;
}

bool is_task_of_srun() {
  return is_slurm_rank() && !variable("OMPI_COMM_WORLD_SIZE") && !has_torchrun_variables();
}

CommunicatorPtr join_world(const HostOptions& options) {
  if (joins_over_mpi()) return make_mpi_world({.host = options});
  WEFT_CHECK(is_rank(),
             "this process is no rank: neither of mpirun nor of srun, nor are torchrun's RANK and "
             "WORLD_SIZE set");
  const RankPlace place = rank_place();
  if (!std::getenv("OMP_NUM_THREADS")) {
    set_num_threads(std::max(1, omp_get_num_procs() / place.local_size));
  }
  return make_tcp_world(environment_store(place, options.timeout_seconds), place.rank, place.size,
                        options);
}

RankPlace rank_place() {
  if (joins_over_mpi()) {
    return {.rank = mpi_rank(),
            .size = mpi_size(),
            .local_rank = mpi_local_rank(),
            .local_size = mpi_local_size()};
  }
  if (has_torchrun_variables()) return torchrun_place();
  return is_slurm_rank() ? slurm_place() : RankPlace{};
}

int local_rank() { return rank_place().local_rank; }
int local_size() { return rank_place().local_size; }

void set_rank_environment() {
  const RankPlace place = rank_place();
  const bool is_of_torchrun = !joins_over_mpi() && has_torchrun_variables();
  // Such ranks may meet in a directory, of which Weft's programs alone know.
  const bool has_address = variable("MASTER_ADDR") || place.is_on_one_host();
  set_rank_environment(
      place,
      is_of_torchrun && !has_address ? MeetingPoint{.address = ""} : usual_meeting_point(place),
      is_of_torchrun ? Present::kKept : Present::kReplaced);
}

}  // namespace weft::dist
