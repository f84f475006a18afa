// What a rank finds in its environment: torchrun's variables, which most programs read.
//
//   RANK WORLD_SIZE               this rank of so many
//   LOCAL_RANK LOCAL_WORLD_SIZE   among those of its host
//   GROUP_RANK GROUP_WORLD_SIZE   its host among the hosts
//   ROLE_RANK ROLE_WORLD_SIZE     as RANK and WORLD_SIZE: there is one role
//   MASTER_ADDR MASTER_PORT       where the ranks may meet; those that are set already stay
//   TORCHELASTIC_RESTART_COUNT    restarts()
#pragma once

#include <string>

namespace weft::dist {

inline constexpr int kMostRanks = 1 << 20;

/// A variable's text; null where it is not set, or empty.
const char* variable(const char* name);
/// Throws Error where it is not set, or no number from `low` to `high`.
int variable_number(const char* name, int low, int high);

struct RankPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;

  bool is_on_one_host() const { return size == local_size; }
};

inline constexpr int kUsualPort = 29500;  // torchrun's

/// Where the ranks of a run may meet.
struct MeetingPoint {
  std::string address = "127.0.0.1";
  int port = 0;
};

/// MASTER_ADDR and MASTER_PORT where they are set; else these, of port 0 one that is free on this
/// host. Throws Error for a MASTER_PORT that is none, and where an empty address is not set.
MeetingPoint meeting_point(const MeetingPoint& otherwise = {});

/// What is set already: of another run, or of this rank.
enum class Present { kReplaced, kKept };

/// Sets the variables of this process, for the program that it is about to become; of a meeting
/// point without an address none.
void set_rank_environment(const RankPlace& place, const MeetingPoint& meeting,
                          Present present = Present::kReplaced);

/// Takes out of this process's environment what mpirun or srun have said to it as a rank, or as a
/// task, and a launcher of the restarts of its run: what it starts is a run of its own, whose ranks
/// would else take themselves, and an MPI of theirs would take them, for that one rank. What is
/// configured stays (PMIX_MCA_*, OMPI_MCA_* but OMPI_MCA_ess*), and what is of Slurm's job.
void forget_outer_rank();

/// The variable by which a launcher says how often it has started all ranks again.
inline constexpr const char* kRestartVariable = "WEFT_RESTART";
/// What it says, or torchrun's TORCHELASTIC_RESTART_COUNT; 0: nothing does.
int restarts();
/// The variable by which it then says how many ranks there were at the first start.
inline constexpr const char* kFirstRanksVariable = "WEFT_FIRST_RANKS";
/// What it says; 0: nothing does.
int first_ranks();

}  // namespace weft::dist
