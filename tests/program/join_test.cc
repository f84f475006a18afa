// The program under torchrun's variables, or Slurm's: it joins the ranks that are there, without
// MPI.
#include <functional>

#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

std::string tiny(const std::string& more) {
  static const std::string folder = make_colour_folders("join_images", 30, 16, 16);
  return fmt::format(
      "--model vit_lite --data folder:{} --global-batch-size 24 --limit-batches 2 --epochs 1 "
      "--deterministic-reduce=4 --seed 5 {}",
      folder, more);
}

/// Runs `weft train` as two ranks; `environment` of one's number goes in front.
Outcome run_two(const std::function<std::string(int)>& environment, const std::string& arguments) {
  const auto rank = [&](int r) {
    return fmt::format("env {} timeout 300 {} {}", environment(r), weft_program(), arguments);
  };
  return run_shell(rank(1) + " & second=$!; " + rank(0) +
                   "; first=$?; wait $second && exit $first");
}

}  // namespace

TEST_CASE("ranks that somebody else started train as those of --devices") {
  run_train("launched", tiny("--devices 2 --strategy fsdp"));
  const std::string store = fresh_scratch("rendezvous");
  const auto of_torchrun = [&](int rank) {
    return fmt::format(
        "PATH=/nowhere:/usr/bin:/bin WEFT_STORE={0} RANK={1} WORLD_SIZE=2 LOCAL_RANK={1} "
        "LOCAL_WORLD_SIZE=2",
        store, rank);
  };
  // A step of the job that this process is the number of: another's port is another one.
  const auto of_srun = [](int rank) {
    return fmt::format(
        "SLURM_JOB_ID={0} SLURM_STEP_ID=0 SLURM_PROCID={1} SLURM_LOCALID={1} SLURM_NODEID=0 "
        "SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=localhost",
        ::getpid(), rank);
  };
  for (const auto& environment :
       {std::function<std::string(int)>(of_torchrun), std::function<std::string(int)>(of_srun)}) {
    INFO(environment(0));
    const Outcome outcome = run_two(environment, "train --json --strategy fsdp --output " +
                                                     fresh_scratch("joined") + " " + tiny(""));
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(diff_weights("launched", "joined") == 0);
    // Rank 0 alone speaks.
    CHECK(events_of(parse_lines(outcome.out), "done").size() == 1);
  }
}

TEST_CASE("ranks that were not started alike are told apart") {
  const auto with_store = [](int rank) {
    return fmt::format(
        "PATH=/nowhere:/usr/bin:/bin WEFT_STORE={0} RANK={1} WORLD_SIZE=2 LOCAL_RANK={1} "
        "LOCAL_WORLD_SIZE=2",
        scratch("apart"), rank);
  };
  const auto apart = [&](const std::string& of_rank_1, const std::string& message) {
    fresh_scratch("apart");
    const auto rank = [&](int r) {
      return with_store(r) + " timeout 300 " + weft_program() + " train --output " +
             fresh_scratch("apart_run") + " " + tiny("") + (r == 1 ? " " + of_rank_1 : "");
    };
    const Outcome outcome = run_shell(rank(1) + " & second=$!; " + rank(0) +
                                      "; first=$?; wait $second; echo $first $?");
    INFO(outcome.err);
    CHECK(outcome.out == "1 1\n");
    CHECK_THAT(outcome.err, Contains("the ranks were not started alike: rank 0 has " + message));
  };
  apart("--lr 0.125", "lr ");
  apart("--weight-decay 0.5", "weight_decay ");
  apart("--label-smoothing 0.3", "label_smoothing ");
}

TEST_CASE("variables that do not make a world are errors") {
  for (const auto& [variables, message] :
       {std::pair("WORLD_SIZE=2", "WORLD_SIZE is 2, but RANK is not set"),
        std::pair("RANK=1", "RANK is 1, but WORLD_SIZE is not set")}) {
    check_error(run_shell(fmt::format("{} timeout 300 {} train --output {} {}", variables,
                                      weft_program(), fresh_scratch("none"), tiny(""))),
                1, message);
  }
  check_error(run_shell("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost timeout 300 " + weft_program() +
                        " train --output " + fresh_scratch("none") + " " + tiny("")),
              1, "MASTER_PORT is not");
  check_error(
      run_shell("RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 "
                "WEFT_DIST_TIMEOUT=0.3 timeout 300 " +
                weft_program() + " train --output " + fresh_scratch("none") + " " + tiny("")),
      1, "cannot connect to localhost, port 1");
}
