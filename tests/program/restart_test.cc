// A rank dies once: all start again from the last checkpoint, and nothing of it is seen in the end.
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

TEST_CASE(
    "after a killed rank a run goes on by itself and ends with the bits of an undisturbed one") {
  const std::string folder = make_colour_folders("restart_images", 30, 16, 16);
  const std::string settings = fmt::format(
      "--model vit_lite --data folder:{} --global-batch-size 8 --limit-batches 3 --seed 5 "
      "--epochs 12 --drop-path 0.1 --devices 2 --strategy fsdp",
      folder);
  run_train("undisturbed", settings);
  const std::string run = fresh_scratch("disturbed");
  const Outcome outcome = train_with_killed_rank(run, "--json --max-restarts 2 " + settings);
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("restart 1 of 2"));
  CHECK_THAT(outcome.err, !Contains("restart 2 of 2"));
  CHECK(diff_weights("undisturbed", "disturbed") == 0);
  // What was asked for beside the settings holds for the second start, too.
  CHECK_THAT(outcome.out, Contains("{\"event\":\"done\""));
}

TEST_CASE("a training that weft launch starts again goes on, and takes no other run for its own") {
  const std::string folder = make_colour_folders("launched_images", 30, 16, 16);
  const std::string settings = fmt::format(
      "--model vit_lite --data folder:{} --global-batch-size 8 --limit-batches 3 --seed 5 "
      "--epochs 12 --drop-path 0.1 --strategy fsdp",
      folder);
  run_train("alone", settings + " --devices 2");
  const std::string launch = weft_program() + " launch --devices 2 --max-restarts 2 -- ";
  const Outcome outcome = train_with_killed_rank(fresh_scratch("launched"), settings, launch);
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("restart 1 of 2") && !Contains("restart 2 of 2"));
  CHECK(diff_weights("alone", "launched") == 0);

  const std::string train = "train --output " + scratch("alone") + " " + settings;
  const std::string refusal = scratch("alone") + " already holds a run; continue it with --resume";
  check_error(run_weft(train + " --devices 2 --max-restarts 2"), 2, refusal);
  const Outcome refused = run_shell("timeout 300 " + launch + weft_program() + " " + train);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains(refusal) && !Contains("restart"));
  // What a launcher says is for its ranks: the process that starts ranks of its own is none.
  for (const std::string name : {"WEFT_RESTART", "TORCHELASTIC_RESTART_COUNT"}) {
    const std::string program = name + "=1 timeout 300 " + weft_program() + " ";
    check_error(run_shell(program + train + " --devices 2"), 2, refusal);
  }
  // torchrun's agent says it, too: with no checkpoint yet, such a training starts anew.
  const Outcome anew = run_shell(fmt::format(
      "timeout 300 {0} launch --devices 1 -- env TORCHELASTIC_RESTART_COUNT=1 {0} train --json "
      "--output {1} --model resnet8 --epochs 1 --limit-batches 1 --batch-size 4",
      weft_program(), fresh_scratch("anew")));
  INFO(anew.err);
  CHECK(anew.code == 0);
}

TEST_CASE("what does not get better by repeating is not repeated") {
  const Outcome outcome =
      run_weft("launch --devices 2 --max-restarts 3 -- sh -c 'echo started; exit 2'");
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, !Contains("restart 1"));
  const Outcome failing = run_weft("launch --devices 2 --max-restarts 2 -- sh -c 'exit 3'");
  CHECK(failing.code == 3);
  CHECK_THAT(failing.err, Contains("restart 2 of 2"));
}
