// MPI across two hosts, made of this one: network and host name apart (unshare -n -u), a veth pair
// between them, and nsenter in the place of ssh. Needs root; skipped, and counted, without.
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "dist/comm/processes/mpi.h"
#include "dist/comm/testing/conformance.h"
#include "dist/comm/testing/rank_processes.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), 0755);
}

/// Two hosts, gone with the object.
class Hosts {
 public:
  Hosts() {
    const char* directory = std::getenv("TEST_TMPDIR");
    directory_ = fmt::format("{}/two-hosts-{}", directory ? directory : "/tmp", ::getpid());
    std::filesystem::create_directories(directory_);
    // Each host is a process that sleeps in its namespaces, and ends by itself.
    const CommandOutcome made = run_command(fmt::format(
        "set -e; cd {0}; for h in a b; do unshare -n -u sleep 180 >/dev/null 2>&1 & echo $! >$h; "
        "done; sleep 0.3; "
        // From within one of them, which is allowed where this host's own network is not ours.
        "nsenter -t $(cat a) -n ip link add wva type veth peer name wvb netns $(cat b); "
        "for h in a b; do nsenter -t $(cat $h) -n -u sh -c "
        "\"hostname weft-$h; ip link set lo up; ip link set wv$h up\"; done; "
        "nsenter -t $(cat a) -n ip addr add 10.77.0.1/24 dev wva; "
        "nsenter -t $(cat b) -n ip addr add 10.77.0.2/24 dev wvb; sleep 0.3",
        directory_));
    INFO(made.text);
    REQUIRE(made.code == 0);
    write_file(directory_ + "/agent",
               fmt::format("#!/bin/sh\n# ssh HOST COMMAND...\ncase $1 in\n  10.77.0.1) host=a ;;\n"
                           "  *) host=b ;;\nesac\nshift\n"
                           "exec nsenter -t $(cat {0}/$host) -n -u sh -c \"$*\"\n",
                           directory_));
    write_file(directory_ + "/hosts", "10.77.0.1 slots=2\n10.77.0.2 slots=2\n");
  }
  ~Hosts() {
    for (const char* host : {"a", "b"}) {
      int pid = 0;
      std::ifstream(directory_ + "/" + host) >> pid;
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    std::filesystem::remove_all(directory_);
  }

  /// A [.rank] case on two ranks of each.
  CommandOutcome run_case(const std::string& name) const {
    const LaunchOptions options = {
        .ranks = 4,
        .hostfile = directory_ + "/hosts",
        .extra = {"--mca", "plm_rsh_agent", directory_ + "/agent", "--mca", "oob_tcp_if_include",
                  "10.77.0.0/24", "--mca", "btl_tcp_if_include", "10.77.0.0/24", "-x",
                  "OMP_NUM_THREADS=1"}};
    return run_under_mpirun(options, name, fmt::format("nsenter -t $(cat {}/a) -n -u", directory_));
  }

 private:
  std::string directory_;
};

bool can_make_hosts() {
  return ::geteuid() == 0 &&
         run_command("unshare -n -u ip link add wvx type veth peer name wvy").code == 0;
}

}  // namespace

TEST_CASE("a rank of one of two hosts conforms", "[.rank]") {
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 30}});
  fmt::print("rank {} on {}, {} of {} there\n", world->rank(), host_name(), mpi_local_rank(),
             mpi_local_size());
  run_conformance(*world);
}

TEST_CASE("a rank of the other host stalls", "[.rank]") {
  ::signal(SIGTERM, SIG_DFL);
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 2}});
  const Tensor x = Tensor::zeros({4});
  world->all_reduce(x).wait();
  if (world->rank() == 3) ::sleep(60);
  say_error_of([&] { world->all_reduce(x).wait(); });
}

TEST_CASE("two hosts make one world") {
  if (!can_make_hosts()) WEFT_SKIP("two hosts: making them needs root");
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const Hosts hosts;
  const CommandOutcome outcome = hosts.run_case("a rank of one of two hosts conforms");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  for (const char* place : {"rank 0 on weft-a, 0 of 2", "rank 1 on weft-a, 1 of 2",
                            "rank 2 on weft-b, 0 of 2", "rank 3 on weft-b, 1 of 2"}) {
    CHECK_THAT(outcome.text, Contains(place));
  }
  // What a rank did on another host is not known here; that it did not come is.
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome stalled = hosts.run_case("a rank of the other host stalls");
  INFO(stalled.text);
  CHECK(stalled.code != 0);
  CHECK_THAT(stalled.text, Contains("all_reduce #2 (sum f32 [4])") && Contains("rank 3"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
}
