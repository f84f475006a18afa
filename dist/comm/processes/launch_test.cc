// Starting ranks and starting them again, whatever mpirun there is.
#include "dist/comm/processes/launch.h"

#include <fmt/core.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "core/error.h"
#include "tests/captured_stderr.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

std::string scratch(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return std::string(folder ? folder : "/tmp") + "/launch_test_" + name;
}

/// While it lives no mpirun is found: ranks are this host's, and each that is killed counts.
struct NoMpirun {
  NoMpirun() { ::setenv("PATH", "/nowhere", 1); }
  ~NoMpirun() { ::setenv("PATH", before.c_str(), 1); }
  const std::string before = std::getenv("PATH");
};

/// Of a program that runs on even numbers of ranks alone, and ends well when it is started again.
struct EvenRanks {
  std::vector<int> started = {};
  RestartCommand command() {
    return [this](int ranks) -> std::vector<std::string> {
      WEFT_CHECK(ranks % 2 == 0, "2 does not divide {}", ranks);
      started.push_back(ranks);
      return {"/bin/true"};
    };
  }
};

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

}  // namespace

TEST_CASE("an error leaves this process's signals as they were") {
  struct sigaction before = {}, after = {};
  before.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &before, nullptr);
  CHECK_THROWS_WITH(launch({.ranks = 3, .hosts = 2}, {"true"}), Contains("dealt out evenly"));
  ::sigaction(SIGINT, nullptr, &after);
  CHECK(after.sa_handler == SIG_IGN);
  ::signal(SIGINT, SIG_DFL);
}

TEST_CASE("ranks that end because this process was asked to stop are an interruption, 130") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    INFO("signal " << signal);
    ::signal(signal, SIG_DFL);  // under nohup one is ignored
    std::thread asks([signal] {
      std::this_thread::sleep_for(std::chrono::seconds(2));  // mpirun takes one to begin
      ::kill(::getpid(), signal);
    });
    CHECK(launch({.ranks = 2}, shell("exec /bin/sleep 20")) == 130);
    asks.join();
  }
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
                                  "OMPI_MCA_ess",
                                  "OMPI_MCA_ess_base_jobid",
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

TEST_CASE("ranks of a first start find nothing of the restarts of the rank that starts them") {
  const std::string file = scratch("restarts");
  const char* const of_outer[] = {"WEFT_RESTART", "WEFT_FIRST_RANKS", "TORCHELASTIC_RESTART_COUNT"};
  for (const bool finds_mpirun : {true, false}) {
    INFO("finds mpirun: " << finds_mpirun);
    std::optional<NoMpirun> here;
    if (!finds_mpirun) here.emplace();
    std::ofstream(file).close();
    for (const char* name : of_outer) ::setenv(name, "5", 1);
    int code = -1;
    captured_stderr([&] {
      code = launch({.ranks = 1, .max_restarts = 1},
                    shell("echo ${WEFT_RESTART:-none} of ${WEFT_FIRST_RANKS:-none}, "
                          "${TORCHELASTIC_RESTART_COUNT:-0} >>" +
                          file + "; [ -n \"$WEFT_RESTART\" ]"));
    });
    for (const char* name : of_outer) {
      CHECK(std::getenv(name) == std::string("5"));  // this process stays what it is
      ::unsetenv(name);
    }
    CHECK(code == 0);
    std::ifstream stream(file);
    std::string first, second;
    std::getline(stream, first);
    std::getline(stream, second);
    CHECK(first == "none of none, 0");
    CHECK_THAT(second, StartsWith("1 of 1, "));
  }
}

TEST_CASE("a run goes on with as many of the ranks that are left as it can have") {
  const NoMpirun here;
  const std::vector<std::string> dies = shell("[ $RANK = 1 ] && kill -9 $$; exec /bin/sleep 20");
  EvenRanks even;
  int code = -1;
  const auto run = [&](const LaunchOptions& options) {
    return captured_stderr([&] { code = launch(options, dies, even.command()); });
  };
  const std::string shrunk = run({.ranks = 4, .max_restarts = 2, .min_ranks = 2});
  CHECK(code == 0);
  CHECK(even.started == std::vector{2});
  CHECK_THAT(shrunk, Contains("restart 1 of 2, on 2 ranks: 2 does not divide 3\n"));
  // What cannot succeed is not started.
  const std::string ended = run({.ranks = 4, .max_restarts = 2, .min_ranks = 3});
  CHECK(code == 128 + 9);
  CHECK(even.started == std::vector{2});
  CHECK(ended ==
        "weft: the ranks ended with exit code 137 and cannot be started again on 3 ranks: 2 does "
        "not divide 3\n");
  const std::string fixed = run({.ranks = 3, .max_restarts = 2});
  CHECK(code == 128 + 9);
  CHECK_THAT(fixed, Contains("cannot be started again on 3 ranks: 2 does not divide 3\n"));
}

TEST_CASE("of a number of ranks in a file as many are started as the run can have") {
  const NoMpirun here;
  const std::string file = scratch("asked");
  for (const auto& [asked, given] : {std::pair(3, 2), {1, 4}, {6, 6}}) {
    INFO(asked);
    std::ofstream(file) << 4;
    EvenRanks even;
    int code = -1;
    const auto command =
        shell(fmt::format("[ $RANK = 0 ] && echo {} >{}; exec /bin/sleep 20", asked, file));
    const std::string told = captured_stderr(
        [&] { code = launch({.ranks = 4, .ranks_file = file}, command, even.command()); });
    CHECK(code == 0);
    CHECK(even.started == std::vector{given});
    CHECK(told == (asked == given
                       ? fmt::format("weft: {} says 6: going on with so many ranks\n", file)
                       : fmt::format("weft: {} says {}: going on with {} ranks: 2 does not "
                                     "divide {}\n",
                                     file, asked, given, asked)));
  }
}

TEST_CASE("what is no number of ranks in a file is told once, and the run goes on") {
  const NoMpirun here;
  const std::string file = scratch("rubbish");
  const auto expected = [&](const std::string& got) {
    return file + ": expected a number of ranks from 1 to 65536, got \"" + got + "\"";
  };
  std::ofstream(file) << "1\n";
  int code = -1;
  const std::string told = captured_stderr([&] {
    code = launch({.ranks = 1, .ranks_file = file},
                  shell(fmt::format("echo two >{0}; /bin/sleep 1.5; echo 0 >{0}; /bin/sleep 1.5; "
                                    ": >{0}; /bin/sleep 1.5",
                                    file)));
  });
  CHECK(code == 0);
  std::string all;
  for (const char* got : {"two", "0", ""}) {
    all += "weft: " + expected(got) + "; the run goes on as it is\n";
  }
  CHECK(told == all);
  CHECK_THROWS_WITH(check_ranks_file(file), expected(""));
  std::ofstream(file) << "two";
  CHECK_THROWS_WITH(check_ranks_file(file), expected("two"));
  CHECK_THROWS_WITH(launch({.ranks = 1, .ranks_file = file}, {"/bin/true"}), expected("two"));
  std::ofstream(file) << " 2\n";
  CHECK_NOTHROW(check_ranks_file(file));
}

TEST_CASE("a file that names no host is named") {
  if (!has_mpirun()) WEFT_SKIP("a file of hosts: there is no mpirun of the MPI of this build");
  const std::string file = scratch("hosts");
  std::ofstream(file) << "# none yet\n\n";
  CHECK_THROWS_WITH(launch({.ranks = 1, .hostfile = file}, {"true"}),
                    Contains(file + ": expected a host on each line, \"node1 slots=4\", got none"));
}

TEST_CASE("a rank that is stopped when the others have ended is killed at the deadline, by name") {
  ::setenv("WEFT_DIST_TIMEOUT", "2", 1);
  // Rank 1 stops itself; of either launcher.
  const std::string script =
      "if [ \"${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}\" = 1 ]; then kill -STOP $$; fi";
  const auto try_it = [&] {
    const auto begin = std::chrono::steady_clock::now();
    const std::string told =
        captured_stderr([&] { CHECK(launch({.ranks = 3}, shell(script)) != 0); });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
    CHECK_THAT(told, Contains("rank 1 (process ") &&
                         Contains("was stopped when others had ended; it is killed after 2 s"));
  };
  if (has_mpirun()) try_it();
  const NoMpirun no_mpirun;
  try_it();
  ::unsetenv("WEFT_DIST_TIMEOUT");
}

TEST_CASE("a failure names a rank that was stopped") {
  const NoMpirun no_mpirun;
  int code = -1;
  const std::string told = captured_stderr([&] {
    code = launch({.ranks = 2}, shell("if [ $RANK = 1 ]; then kill -STOP $$; else "
                                      "/bin/sleep 3; exit 3; fi"));
  });
  CHECK(code == 3);
  CHECK_THAT(told, Contains("rank 1 (process ") && Contains("was stopped for "));
}
