// The test starts itself again under mpirun; what each rank then does is a case with the tag
// [.rank].
#include "dist/mpi.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "dist/launch.h"
#include "dist/testing/conformance.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

struct Outcome {
  int code;
  std::string text;
};

/// Runs a [.rank] case on some ranks; a minute at most.
Outcome run_case(int ranks, const std::string& name, const std::string& environment = "") {
  const std::string command = fmt::format("{} timeout -k 5 60 {} {} '{}' 2>&1", environment,
                                          fmt::join(mpirun_command({.ranks = ranks}), " "),
                                          "/proc/" + std::to_string(::getpid()) + "/exe", name);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

/// Catch's handler would take the place of the rank's own.
void leave_signals_alone() { ::signal(SIGTERM, SIG_DFL); }

}  // namespace

TEST_CASE("conformance of a rank", "[.rank]") {
  const CommunicatorPtr world = make_mpi_world();
  run_conformance(*world);
}

TEST_CASE("conformance of a rank in small pieces", "[.rank]") {
  const CommunicatorPtr world = make_mpi_world({.largest_message = 1000});
  run_conformance(*world);
}

TEST_CASE("a rank that stalls", "[.rank]") {
  leave_signals_alone();
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 1}});
  const Tensor x = Tensor::zeros({4});
  world->all_reduce(x).wait();
  if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
  try {
    world->all_reduce(x).wait();
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
    std::fflush(stdout);
    throw;
  }
}

TEST_CASE("a rank that is killed", "[.rank]") {
  leave_signals_alone();
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 20}});
  const Tensor x = Tensor::zeros({4});
  world->all_reduce(x).wait();
  if (world->rank() == 1) ::kill(::getpid(), SIGKILL);
  try {
    world->all_reduce(x).wait();
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
    std::fflush(stdout);
    throw;
  }
}

TEST_CASE("MPI processes conform") {
  for (int ranks : {1, 2, 3, 4, 8}) {
    const Outcome outcome = run_case(ranks, "conformance of a rank");
    INFO(ranks << " ranks:\n" << outcome.text);
    CHECK(outcome.code == 0);
  }
}

TEST_CASE("MPI messages are cut where their counts would not fit") {
  const Outcome outcome = run_case(3, "conformance of a rank in small pieces");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
}

TEST_CASE("a stalled process is named, and the others end") {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_case(3, "a rank that stalls");
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.text, Contains("all_reduce #2 (sum f32 [4])"));
  CHECK_THAT(outcome.text,
             Contains("rank 1 has not come: it ended all_reduce #1 and has begun none since"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("a killed process is named, and the others end") {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_case(3, "a rank that is killed");
  INFO(outcome.text);
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.text, Contains("all_reduce #2 (sum f32 [4]): rank 1 "));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}
