// Starting ranks and starting them again, whatever mpirun there is.
#include "dist/comm/processes/launch.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

using namespace weft::dist;
using Catch::Matchers::Contains;

TEST_CASE("an error leaves this process's signals as they were") {
  struct sigaction before = {}, after = {};
  before.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &before, nullptr);
  CHECK_THROWS_WITH(launch({.ranks = 3, .hosts = 2}, {"true"}), Contains("dealt out evenly"));
  ::sigaction(SIGINT, nullptr, &after);
  CHECK(after.sa_handler == SIG_IGN);
  ::signal(SIGINT, SIG_DFL);
}

TEST_CASE("a number of ranks that changes while none run counts for those that are started next") {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string file = std::string(folder ? folder : "/tmp") + "/launch_test_ranks";
  std::ofstream(file) << 1;
  std::vector<int> started;
  const auto again = [&](int ranks) -> std::vector<std::string> {
    started.push_back(ranks);
    if (started.size() > 1) return {"true"};
    std::ofstream(file) << 2;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the file is looked at meanwhile
    return {"sleep", "20"};
  };
  CHECK(launch({.ranks = 1, .max_restarts = 1, .ranks_file = file}, {"false"}, again) == 0);
  CHECK(started == std::vector{1, 2});
}

TEST_CASE("ranks do not take themselves for the task of srun, or the rank, that starts them") {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string file = std::string(folder ? folder : "/tmp") + "/launch_test_variables_";
  const char* const of_outer[] = {"OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK",
                                  "OMPI_UNIVERSE_SIZE",
                                  "PMIX_RANK",
                                  "PMIX_NAMESPACE",
                                  "PMIX_SERVER_URI41",
                                  "PMI_RANK",
                                  "PMI_FD",
                                  "MPI_LOCALRANKID",
                                  "SLURM_STEP_ID",
                                  "SLURM_STEPID",
                                  "SLURM_STEP_NUM_TASKS",
                                  "SLURM_STEP_TASKS_PER_NODE",
                                  "SLURM_PROCID",
                                  "SLURM_LOCALID",
                                  "SLURM_GTIDS"};
  const char* const others[] = {"OMPI_MCA_btl", "PMIX_MCA_gds", "SLURM_JOB_ID", "SLURM_NTASKS"};
  for (const char* name : of_outer) ::setenv(name, "5", 1);
  for (const char* name : others) ::setenv(name, "5", 1);
  // Of one host of two: these are not mpirun's.
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  const LaunchOptions options = {.ranks = 4, .hosts = 2, .host = 1};
  CHECK(launch(options, {"/bin/sh", "-c", "export -p >" + file + "$LOCAL_RANK"}) == 0);
  CHECK(std::getenv("PMIX_RANK") == std::string("5"));  // this process stays what it is
  for (const char* local_rank : {"0", "1"}) {
    std::ifstream stream(file + local_rank);
    const std::string variables(std::istreambuf_iterator<char>(stream), {});
    CHECK_THAT(variables, Contains(" WORLD_SIZE="));
    for (const char* name : of_outer) CHECK_THAT(variables, !Contains(std::string(name) + "="));
    for (const char* name : others) CHECK_THAT(variables, Contains(std::string(name) + "="));
  }
  for (const char* name : of_outer) ::unsetenv(name);
  for (const char* name : others) ::unsetenv(name);
  ::unsetenv("MASTER_ADDR");
}
