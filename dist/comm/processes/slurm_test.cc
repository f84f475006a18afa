// Ranks by srun's variables alone.
#include "dist/comm/processes/slurm.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>

#include "dist/comm/processes/join.h"
#include "dist/comm/processes/mpi.h"

using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

using Values = std::map<std::string, std::string>;

/// All that may tell of ranks, and of it nothing but these.
class Variables {
 public:
  explicit Variables(const Values& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() { clear(); }

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "GROUP_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMIX_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_PROCID",
                             "SLURM_LOCALID",
                             "SLURM_NODEID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS_PER_NODE",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_TASKS_PER_NODE",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_NNODES",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "WEFT_RESTART",
                             "WEFT_FIRST_RANKS",
                             "TORCHELASTIC_RESTART_COUNT"}) {
      ::unsetenv(name);
    }
  }
};

/// Task 3 of five on three nodes: the first of the second node.
const Values kStep = {{"SLURM_JOB_ID", "1234"},
                      {"SLURM_STEP_ID", "1"},
                      {"SLURM_PROCID", "2"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "5"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                      {"SLURM_STEP_NODELIST", "node[07-08,11]"}};

Values with(Values values, const Values& others) {
  for (const auto& [name, value] : others) {
    if (value.empty()) {
      values.erase(name);
    } else {
      values[name] = value;
    }
  }
  return values;
}

std::string text_of(const RankPlace& place) {
  return std::to_string(place.rank) + " of " + std::to_string(place.size) + ", " +
         std::to_string(place.local_rank) + " of " + std::to_string(place.local_size);
}

}  // namespace

TEST_CASE("a list of tasks per node is counts and how often each comes") {
  CHECK(parse_tasks_per_node("4") == std::vector{4});
  CHECK(parse_tasks_per_node("2(x3),1") == std::vector{2, 2, 2, 1});
  for (const char* text : {"", ",", "two", "2(x3", "2(x0)", "0", "-1", "2,,1", "2 (x3)", "2(y3)"}) {
    INFO(text);
    CHECK_THROWS_WITH(parse_tasks_per_node(text), Contains("tasks per node: expected counts"));
  }
}

TEST_CASE("of a list of hosts the first is known") {
  CHECK(first_of_hosts("node7") == "node7");
  CHECK(first_of_hosts("login,node[1-3]") == "login");
  CHECK(first_of_hosts("node[1-3,7]") == "node1");
  CHECK(first_of_hosts("node[012-100].cluster,other") == "node012.cluster");
  CHECK(first_of_hosts("rack[2,4-5]node[03-04]") == "rack2node03");
  CHECK(first_of_hosts("") == "");
}

TEST_CASE("a task of a step is a rank, with a place and a meeting point") {
  {
    const Variables step(kStep);
    CHECK(is_rank());
    CHECK(is_task_of_srun());
    CHECK(text_of(rank_place()) == "2 of 5, 0 of 2");
    set_rank_environment();
    CHECK(std::getenv("MASTER_ADDR") == std::string("node07"));
    CHECK(variable_number("MASTER_PORT", 15000, 29999) == slurm_port());
    CHECK(variable_number("GROUP_RANK", 0, 9) == 1);
    // Now they are torchrun's, and say the same.
    CHECK(!is_task_of_srun());
    CHECK(text_of(rank_place()) == "2 of 5, 0 of 2");
  }
  // Each step has a port of its own.
  const auto port_of = [](const Values& others) {
    const Variables step(with(kStep, others));
    return slurm_port();
  };
  CHECK(port_of({}) == port_of({{"SLURM_PROCID", "1"}}));
  CHECK(port_of({}) != port_of({{"SLURM_STEP_ID", "2"}}));
  CHECK(port_of({}) != port_of({{"SLURM_JOB_ID", "1235"}}));
  {
    // One node, of which Slurm need not say more.
    const Variables step({{"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "1"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NTASKS", "2"},
                          {"MASTER_PORT", "12345"}});
    CHECK(text_of(rank_place()) == "1 of 2, 1 of 2");
    set_rank_environment();
    CHECK(std::getenv("MASTER_ADDR") == std::string("127.0.0.1"));
    CHECK(std::getenv("MASTER_PORT") == std::string("12345"));
  }
}

TEST_CASE("what Slurm starts as no rank is none") {
  for (const Values& others :
       {Values{{"SLURM_STEP_ID", ""}},            // a script, long ago
        Values{{"SLURM_STEP_ID", "4294967291"}},  // sbatch's script
        Values{{"SLURM_STEP_ID", "4294967290"}},  // salloc's shell
        Values{{"SLURM_PROCID", ""}}, Values{{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}},
        Values{{"SLURM_STEP_NUM_TASKS", "1"}}}) {
    const Variables step(with(kStep, others));
    CHECK(!is_rank());
    CHECK(text_of(rank_place()) == "0 of 1, 0 of 1");
  }
}

TEST_CASE("variables of Slurm that are missing or wrong are named") {
  const auto fault_of = [](const Values& others) {
    const Variables step(with(kStep, others));
    try {
      rank_place();
    } catch (const weft::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(fault_of({}) == "");
  CHECK(fault_of({{"SLURM_PROCID", "5"}}) ==
        "SLURM_PROCID: expected a number from 0 to 4, got \"5\"");
  CHECK(fault_of({{"SLURM_LOCALID", ""}}) ==
        "SLURM_LOCALID is not set: expected a number from 0 to 1");
  CHECK(fault_of({{"SLURM_NODEID", "3"}}) ==
        "SLURM_NODEID: expected a number from 0 to 2, got \"3\"");
  CHECK_THAT(fault_of({{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_NNODES", "3"}}),
             Contains("SLURM_STEP_TASKS_PER_NODE is not"));
  CHECK_THAT(fault_of({{"SLURM_STEP_TASKS_PER_NODE", "many"}}), Contains("got \"many\""));
}

TEST_CASE("under a plugin for MPI a step of one task is no rank, and a task may start ranks") {
  {
    const Variables step(with(kStep, {{"PMIX_RANK", "2"}}));
    CHECK(is_mpi_rank());
    CHECK(is_task_of_srun());
  }
  for (const char* rank : {"PMIX_RANK", "PMI_RANK"}) {
    const Variables one({{"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NUM_TASKS", "1"},
                         {rank, "0"}});
    CHECK(!is_rank());
    CHECK(!is_task_of_srun());
  }
  // Ranks of an mpirun that was called in such a task.
  const Values task = {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  for (const Values& ranks : {Values{{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "1"}},
                              Values{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}}) {
    const Variables step(with(task, ranks));
    CHECK(is_mpi_rank());
    CHECK(!is_task_of_srun());
  }
}

TEST_CASE("under a plugin for MPI a node's tasks are those that Slurm counts") {
  const Variables step(with(kStep, {{"PMIX_RANK", "2"}}));
  CHECK(mpi_local_size() == 2);
  CHECK(text_of(rank_place()) == "2 of 5, 0 of 2");
  const Variables one_node(
      {{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}});
  CHECK(mpi_local_size() == 2);
  // A step's tasks may be fewer than the job's.
  const Variables part({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK(mpi_size() == 2);
}

TEST_CASE(
    "variables of mpirun's that are no numbers are named, and those without a text are none") {
  const Variables wrong({{"PMIX_RANK", "first"}, {"SLURM_NTASKS_PER_NODE", "0"}});
  CHECK_THROWS_WITH(mpi_rank(), Contains("PMIX_RANK: expected a number from 0"));
  CHECK_THROWS_WITH(mpi_local_size(), Contains("SLURM_NTASKS_PER_NODE: expected a number from 1"));
  const Variables none(Values{{"PMIX_RANK", ""}});
  CHECK(!is_mpi_rank());
}

TEST_CASE("torchrun's variables that are set stay, and the others are filled in") {
  {
    const Variables rank({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
    CHECK(text_of(rank_place()) == "1 of 2, 0 of 1");
    set_rank_environment();
    CHECK(variable_number("LOCAL_RANK", 0, 9) == 0);
    CHECK(variable_number("LOCAL_WORLD_SIZE", 0, 9) == 1);
    CHECK(!variable("MASTER_ADDR"));
  }
  {
    const Variables rank({{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"GROUP_RANK", "7"},
                          {"MASTER_ADDR", "host"}});
    set_rank_environment();
    CHECK(variable_number("LOCAL_WORLD_SIZE", 0, 9) == 2);
    CHECK(variable_number("GROUP_RANK", 0, 9) == 7);
    CHECK(variable_number("MASTER_PORT", 1, 65535) == kUsualPort);
  }
  const auto check_fault = [](const Values& values, const std::string& fault) {
    const Variables rank(values);
    CHECK_THROWS_WITH(rank_place(), fault);
  };
  check_fault({{"RANK", "y"}, {"WORLD_SIZE", "x"}},
              "WORLD_SIZE: expected a number from 1 to 1048576, got \"x\"");
  check_fault({{"RANK", "5"}, {"WORLD_SIZE", "2"}},
              "RANK: expected a number from 0 to 1, got \"5\"");
  check_fault({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}},
              "LOCAL_RANK: expected a number from 0 to 0, got \"1\"");
}

TEST_CASE("a rank knows how often all were started again") {
  {
    const Variables none(Values{});
    CHECK(restarts() == 0);
    CHECK(first_ranks() == 0);
  }
  {
    const Variables torchrun(Values{{"TORCHELASTIC_RESTART_COUNT", "2"}});
    CHECK(restarts() == 2);
  }
  const Variables both(
      {{"WEFT_RESTART", "1"}, {"WEFT_FIRST_RANKS", "3"}, {"TORCHELASTIC_RESTART_COUNT", "0"}});
  CHECK(restarts() == 1);
  CHECK(first_ranks() == 3);
  const Variables wrong(Values{{"WEFT_RESTART", "once"}, {"WEFT_FIRST_RANKS", "0"}});
  CHECK_THROWS_WITH(restarts(), Contains("WEFT_RESTART: expected a number"));
  CHECK_THROWS_WITH(first_ranks(), Contains("WEFT_FIRST_RANKS: expected a number from 1"));
}
