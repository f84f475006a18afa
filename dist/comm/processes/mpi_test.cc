#include "dist/comm/processes/mpi.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "dist/comm/testing/conformance.h"
#include "dist/comm/testing/rank_processes.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

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
  say_error_of([&] { world->all_reduce(x).wait(); });
}

TEST_CASE("a rank that is killed", "[.rank]") {
  leave_signals_alone();
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 20}});
  const Tensor x = Tensor::zeros({4});
  world->all_reduce(x).wait();
  if (world->rank() == 1) ::kill(::getpid(), SIGKILL);
  say_error_of([&] { world->all_reduce(x).wait(); });
}

TEST_CASE("a message that comes when its receiver has given up", "[.rank]") {
  leave_signals_alone();
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 2}});
  const CommunicatorPtr beside = world->group({0, 1}, "beside");
  const Tensor x = Tensor::full({4}, world->rank());
  if (world->rank() == 0) {
    CHECK_THROWS_WITH(world->recv(x, 1).wait(), Contains("the deadline has passed"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    world->send(x, 0).wait();
  }
  beside->barrier().wait();  // by the end of it, MPI has seen the message
  if (world->rank() == 0) CHECK(x.to_vector()[0] == 0);
}

TEST_CASE("a group with a rank that has left", "[.rank]") {
  leave_signals_alone();
  const CommunicatorPtr world = make_mpi_world({.host = {.timeout_seconds = 20}});
  world->barrier().wait();
  if (world->rank() == 1) return world->leave("no memory");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  say_error_of([&] { world->group({0, 1}, "late"); });
}

TEST_CASE("MPI processes conform") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  for (int ranks : {1, 2, 3, 4, 8}) {
    const CommandOutcome outcome = run_under_mpirun({.ranks = ranks}, "conformance of a rank");
    INFO(ranks << " ranks:\n" << outcome.text);
    CHECK(outcome.code == 0);
  }
}

TEST_CASE("MPI messages are cut where their counts would not fit") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const CommandOutcome outcome =
      run_under_mpirun({.ranks = 3}, "conformance of a rank in small pieces");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
}

TEST_CASE("a stalled process is named, and the others end") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome outcome = run_under_mpirun({.ranks = 3}, "a rank that stalls");
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.text, Contains("all_reduce #2 (sum f32 [4])"));
  CHECK_THAT(outcome.text,
             Contains("rank 1 has not come: it ended all_reduce #1 and has begun none since"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("a message over MPI changes nothing when its receiver has given up") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const CommandOutcome outcome =
      run_under_mpirun({.ranks = 2}, "a message that comes when its receiver has given up");
  INFO(outcome.text);  // the code is that of a world of which a rank has given up
  CHECK_THAT(outcome.text, Contains("All tests passed"));
  CHECK_THAT(outcome.text, !Contains("FAILED"));
}

TEST_CASE("over MPI a group that is made after a rank has left does not wait for it") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome outcome =
      run_under_mpirun({.ranks = 2}, "a group with a rank that has left");
  CHECK_THAT(outcome.text, Contains("a group of ranks 0, 1: rank 1 "));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
}

TEST_CASE("a killed process is named, and the others end") {
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome outcome = run_under_mpirun({.ranks = 3}, "a rank that is killed");
  INFO(outcome.text);
  CHECK(outcome.code != 0);
  // MPICH's mpirun ends the others itself, before they can say anything.
  CHECK_THAT(outcome.text,
             Contains(mpi_library() == "MPICH" ? "Killed (signal 9)"
                                               : "all_reduce #2 (sum f32 [4]): rank 1 "));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}
