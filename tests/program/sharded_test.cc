// Sharded checkpoints through the program: written by ranks, taken up by others, put together.
#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// Two epochs of two batches; with a deterministic reduction every strategy has one rank's bits.
std::string tiny(const std::string& more) {
  static const std::string folder = make_colour_folders("sharded_images", 30, 16, 16);
  return fmt::format(
      "--model vit_lite --data folder:{} --global-batch-size 24 --limit-batches 2 --seed 5 "
      "--epochs 2 --deterministic-reduce=4 --drop-path 0.1 {}",
      folder, more);
}

void must_run(const std::string& arguments) {
  const Outcome outcome = run_weft(arguments);
  INFO(arguments << "\n" << outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
}

}  // namespace

TEST_CASE("a sharded run goes on elsewhere with the bits of a full one on one rank") {
  run_train("full", tiny(""));
  run_train("sharded", tiny("--devices 4 --strategy fsdp --state-dict-type sharded"));
  CHECK(diff_weights("full", "sharded") == 0);
  const std::string run = scratch("sharded"), last = run + "/step-4";
  for (const std::string name : {"shard-0-of-4-v0", "shard-3-of-4-v0"}) {
    CHECK(std::filesystem::exists(fmt::format("{}/{}.safetensors", last, name)));
  }
  CHECK(!std::filesystem::exists(last + "/model.safetensors"));
  const json index = json::parse(read_file(last + "/index.json"));
  CHECK(index.at("world_size") == 4);
  CHECK(index.at("strategy") == "fsdp");

  for (const char* elsewhere : {"--devices 2 --strategy ddp", "--devices 1 --strategy single"}) {
    INFO(elsewhere);
    std::filesystem::remove(weights("sharded"));
    must_run("train --json --resume " + run + "/step-2 " + elsewhere);
    CHECK(diff_weights("full", "sharded") == 0);
  }

  // What reads checkpoints reads these.
  CHECK(run_weft("eval --checkpoint " + run).out ==
        run_weft("eval --checkpoint " + scratch("full")).out);
  const std::string one = scratch("one.safetensors"), many = fresh_scratch("many");
  must_run("consolidate " + run + " " + one);
  must_run("consolidate " + run + " " + one + " --state model");
  for (const std::string& from : {run, scratch("full")}) {
    check_error(run_weft("consolidate " + from + " " + scratch("foo.safetensors") + " --state foo"),
                1, "a run's checkpoint has one model: expected model, or no --state, got \"foo\"");
  }
  CHECK(!std::filesystem::exists(scratch("foo.safetensors")));
  CHECK(run_weft("diff " + one + " " + weights("full")).code == 0);
  const Outcome spread = run_weft("consolidate " + last + " " + many + " --max-shard-size 1MB");
  INFO(spread.out << spread.err);
  REQUIRE(spread.code == 0);
  CHECK_THAT(spread.out, Contains("1 shards under single") && Contains("model-00001-of-0000") &&
                             Contains("model.safetensors.index.json"));
  for (const std::string& from : {many, many + "/model.safetensors.index.json"}) {
    must_run("convert " + from + " " + one);
    CHECK(run_weft("diff " + one + " " + weights("full")).code == 0);
  }
  must_run("train --output " + fresh_scratch("tuned") + " --weights " + many + " " + tiny(""));

  check_error(run_weft("inspect " + last), 1,
              "a sharded state; weft consolidate makes a file of it");
  // A part that is gone is named, and the checkpoint before.
  std::filesystem::remove(last + "/shard-0-of-1-v0.safetensors");
  check_error(run_weft("train --resume " + run), 1, "shard-0-of-1-v0.safetensors: No such file");
  check_error(run_weft("train --resume " + run), 1,
              "the checkpoint before it is " + run + "/step-2");
  must_run("train --resume " + run + "/step-2");
}

TEST_CASE("consolidate says what it cannot do") {
  check_error(run_weft("consolidate nowhere out.safetensors"), 1, "no checkpoint nowhere");
  check_error(run_weft("consolidate nowhere out"), 2, "expected the name of a .safetensors file");
  check_error(run_weft("consolidate nowhere out --max-shard-size much"), 2,
              "expected a size such as 100MB or 2GiB, got \"much\"");
  check_error(run_weft("train --state-dict-type half"), 2,
              "state-dict-type: \"half\" is not one of full, sharded");
}
