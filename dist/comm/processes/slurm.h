// What Slurm's srun says to the tasks of a step: their places, and where they may meet.
//
//   SLURM_STEP_ID, SLURM_JOB_ID       of a number that means tasks: sbatch's script and salloc's
//                                     shell are steps of other numbers, or of none
//   SLURM_PROCID                      this task of SLURM_STEP_NUM_TASKS, or SLURM_NTASKS
//   SLURM_LOCALID, SLURM_NODEID       this task on its node, its node among the step's
//   SLURM_STEP_TASKS_PER_NODE         "2(x3),1", else the job's SLURM_TASKS_PER_NODE
//   SLURM_STEP_NODELIST               "node[01-03,7]", else the job's SLURM_JOB_NODELIST
//
// https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/comm/processes/rank_environment.h"

namespace weft::dist {

/// True in one of the several tasks of a step, with a plugin for MPI or without.
bool is_slurm_rank();
/// Of such a task. Throws Error naming a variable that is missing or wrong.
RankPlace slurm_place();
/// Tasks on this one's node, where Slurm says so.
std::optional<int> slurm_local_size();
/// The node of the first task; empty where Slurm names none.
std::string slurm_first_host();
/// One that is probably free: the same for all tasks of a step, another for other steps.
int slurm_port();

/// Of "2(x3),1": 2, 2, 2, 1. Throws Error for anything else.
std::vector<int> parse_tasks_per_node(const std::string& text);
/// The first of "node[01-03,7],other": "node01".
std::string first_of_hosts(const std::string& list);

}  // namespace weft::dist
