// The program under torchrun's variables: it joins the ranks that are there, without MPI.
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

/// Runs `weft train` as two ranks, each with the rank's variables in front.
Outcome run_two(const std::string& environment, const std::string& arguments) {
  const auto rank = [&](int r) {
    return fmt::format(
        "env {} RANK={} WORLD_SIZE=2 LOCAL_RANK={} LOCAL_WORLD_SIZE=2 timeout 60 {} {}",
        environment, r, r, weft_program(), arguments);
  };
  return run_shell(rank(1) + " & second=$!; " + rank(0) +
                   "; first=$?; wait $second && exit $first");
}

}  // namespace

TEST_CASE("ranks that somebody else started train as those of --devices") {
  run_train("launched", tiny("--devices 2 --strategy fsdp"));
  const Outcome outcome =
      run_two("PATH=/nowhere:/usr/bin:/bin WEFT_STORE=" + fresh_scratch("rendezvous"),
              "train --json --strategy fsdp --output " + fresh_scratch("joined") + " " + tiny(""));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(diff_weights("launched", "joined") == 0);
  // Rank 0 alone speaks.
  CHECK(events_of(parse_lines(outcome.out), "done").size() == 1);
}

TEST_CASE("variables that do not make a world are errors") {
  check_error(run_shell("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost timeout 60 " + weft_program() +
                        " train --output " + fresh_scratch("none") + " " + tiny("")),
              1, "MASTER_PORT is not");
  check_error(
      run_shell("RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 "
                "WEFT_DIST_TIMEOUT=0.3 timeout 60 " +
                weft_program() + " train --output " + fresh_scratch("none") + " " + tiny("")),
      1, "cannot connect to localhost, port 1");
}
