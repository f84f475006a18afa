// Training on several ranks through the program itself: what stays the same, and what is refused.
#include "io/safetensors.h"
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// A tiny run on 3 x 30 images, two batches an epoch.
std::string tiny(int batch, const std::string& more) {
  static const std::string folder = make_colour_folders("devices_images", 30, 16, 16);
  return fmt::format(
      "--model vit_lite --data folder:{} --global-batch-size {} --limit-batches 2 --seed 5 {}",
      folder, batch, more);
}
const std::string kFixed = "--deterministic-reduce=4 --drop-path 0.1 --erase 0.3 ";

json last(const std::vector<json>& events, const std::string& kind) {
  return events_of(events, kind).back();
}

}  // namespace

TEST_CASE("with a deterministic reduction every strategy has one rank's bits") {
  const auto one = run_train("one", tiny(24, kFixed + "--epochs 1"));
  const json expected = last(one, "epoch");
  const auto check = [&](const std::string& name, const std::string& more) {
    INFO(more);
    const auto run = run_train(name, tiny(24, kFixed + "--epochs 1 " + more));
    CHECK(diff_weights("one", name) == 0);
    CHECK(last(run, "epoch").at("loss") == expected.at("loss"));
    CHECK(last(run, "epoch").at("train_accuracy") == expected.at("train_accuracy"));
    CHECK(last(run, "done").at("val_accuracy") == last(one, "done").at("val_accuracy"));
  };
  check("ddp2", "--devices 2");
  check("fsdp2", "--devices 2 --strategy fsdp");
  check("zero4", "--devices 4 --strategy zero1");
  check("hsdp4", "--devices 4 --strategy hsdp");
}

TEST_CASE("uneven batches on three ranks train as one rank does") {
  // 25 images on three ranks: 9, 9 and 7. The first step is the same but for the order of sums;
  // later ones differ as far as Adam carries that.
  const std::string settings = tiny(25, "--epochs 1 --optimizer sgd --lr 0.01 --clip-norm 0");
  run_train("alone", settings);
  run_train("three", settings + " --devices 3 --strategy zero2");
  CHECK(distance("alone", "three") < 1e-5);
  CHECK(distance("alone", "three") > 0);
}

TEST_CASE("gradients are averaged over samples, or over ranks as PyTorch does") {
  const auto settings = [](int batch) {
    return tiny(batch, "--epochs 1 --optimizer sgd --lr 0.01 --clip-norm 0 --devices 3 ");
  };
  run_train("samples24", settings(24));
  run_train("ranks24", settings(24) + "--gradient-average ranks");
  CHECK(diff_weights("samples24", "ranks24") == 0);
  // 9, 9 and 7 images: the third rank's mean counts 1/3 instead of 7/25.
  run_train("samples25", settings(25));
  run_train("ranks25", settings(25) + "--gradient-average ranks");
  CHECK(distance("samples25", "ranks25") > 1e-6);
}

TEST_CASE("a batch norm sees a step's own images where micro-batches have none") {
  const std::string settings =
      "--model resnet8 --global-batch-size 1 --limit-batches 1 --epochs 1 --seed 5 --data folder:" +
      make_colour_folders("norm_images", 12, 16, 16) + " ";
  run_train("norm1", settings);
  run_train("norm4", settings + "--devices 2 --strategy pipeline --micro-batches 4");
  // The mean moves a tenth of the way to the one image's in one step, in four of 1 - 0.9^4.
  const auto mean = [](const std::string& run) {
    const NamedTensors all = io::read_safetensors(weights(run)).tensors;
    const auto found = std::ranges::find(all, "bn1.running_mean", &NamedTensors::value_type::first);
    REQUIRE(found != all.end());
    return found->second.to_vector();
  };
  const std::vector<double> one = mean("norm1"), four = mean("norm4");
  for (size_t i = 0; i < one.size(); ++i) CHECK(four[i] == Approx(one[i] * 3.439).epsilon(1e-4));
}

TEST_CASE("trap: resuming at another world size, under another strategy") {
  const std::string settings = tiny(24, kFixed + "--epochs 2");
  run_train("whole2", settings);
  const Outcome half = run_weft("train --json --output " + fresh_scratch("half") + " " + settings +
                                " --devices 4 --strategy fsdp");
  REQUIRE(half.code == 0);
  // Back to the end of the first epoch.
  const auto epochs = events_of(parse_lines(half.out), "epoch");
  REQUIRE(epochs.size() == 2);
  const std::string step =
      fmt::format("{}/step-{}", scratch("half"), epochs[0].at("step").get<int>());
  const Outcome rest = run_weft("train --json --resume " + step + " --devices 2 --strategy ddp");
  INFO(rest.err);
  REQUIRE(rest.code == 0);
  CHECK(diff_weights("whole2", "half") == 0);
  const std::string last = events_of(parse_lines(rest.out), "done").at(0).at("checkpoint");
  const json config = json::parse(read_file(last + "/state.json")).at("state").at("config");
  CHECK(config.at("devices") == 2);
  CHECK(config.at("strategy") == "ddp");
  // By any name of a strategy, with what it switches on.
  const Outcome named = run_weft("train --json --resume " + step +
                                 " --devices 2 --strategy deepspeed_stage_2_offload");
  INFO(named.err);
  REQUIRE(named.code == 0);
  const json other = json::parse(read_file(last + "/state.json")).at("state").at("config");
  CHECK(other.at("strategy") == "zero2");
  CHECK(other.at("offload_optimizer") == true);
  CHECK(other.at("global_batch_size") == 24);
  CHECK(diff_weights("whole2", "half") == 0);
  // As at a first start, so that no launcher repeats it.
  check_error(run_weft("train --resume " + step + " --devices 3 --strategy ddp"), 2,
              "4 micro-batches do not make a tree on 3 devices");
}

TEST_CASE("trap: schedules must not end N times too early") {
  // Steps are counted in batches of all ranks, also where a rank takes its batch in parts.
  const auto rates = [](const std::string& name, const std::string& how) {
    std::vector<double> all;
    for (const json& step : events_of(run_train(name, tiny(24, "--epochs 2 " + how)), "step")) {
      all.push_back(step.at("lr"));
    }
    return all;
  };
  const std::vector<double> expected = rates("rates1", "");
  CHECK(expected.size() == 4);
  CHECK(expected.back() < 1e-4);
  CHECK(rates("rates2", "--devices 2 --strategy fsdp") == expected);
  CHECK(rates("rates3", "--devices 3 --strategy dp") == expected);
  CHECK(rates("rates4", "--devices 2 --strategy pipeline --micro-batches 3") == expected);
}

TEST_CASE("settings of ranks that cannot be are usage errors") {
  const std::string ignored = "train --output " + scratch("none") + " ";
  check_error(run_weft(ignored + "--devices 3 --strategy hsdp --shard-size 2"), 2,
              "shard-size 2 does not divide 3 devices");
  check_error(run_weft(ignored + "--devices 2 --strategy single"), 2, "runs on one device, got 2");
  check_error(run_weft(ignored + "--strategy fastest"), 2, "unknown strategy \"fastest\"");
  check_error(run_weft(ignored + "--devices 3 --deterministic-reduce"), 2,
              "8 micro-batches do not make a tree on 3 devices");
  check_error(run_weft(ignored + "--devices 3 --strategy tp --model vit_lite"), 2,
              "3 ranks do not divide 4 heads");
  check_error(run_weft(ignored + "--devices 3 --strategy tp --recipe gpt-quick"), 2,
              "3 ranks do not divide");
  check_error(run_weft(ignored + "--devices 90 --strategy pipeline --model vit_lite"), 2,
              "90 stages cannot be made of");
  check_error(run_weft("train --devices 2 --max-restarts 1"), 2, "--max-restarts needs --output");
  CHECK(!std::filesystem::exists(scratch("none")));
}

TEST_CASE("ranks that were started by hand must be as many as the run wants") {
  const Outcome outcome = run_weft("launch --devices 3 -- " + weft_program() + " train --output " +
                                   scratch("none") + " " + tiny(4, "--devices 2"));
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, Contains("2 devices were asked for, 3 ranks were started"));
  CHECK(!std::filesystem::exists(scratch("none")));
}

TEST_CASE("without mpirun ranks are processes that talk over TCP, and train the same") {
  run_train("with_mpirun", tiny(4, "--devices 2 --strategy fsdp"));
  const std::string run = fresh_scratch("without_mpirun"), here = "PATH=/nowhere ";
  const Outcome outcome =
      run_shell(here + "/usr/bin/timeout 300 " + weft_program() + " train --output " + run + " " +
                tiny(4, "--devices 2 --strategy fsdp"));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(diff_weights("with_mpirun", "without_mpirun") == 0);
}

TEST_CASE("what only mpirun can do says that it is missing") {
  std::ofstream(scratch("hosts")) << "localhost\n";
  check_error(run_shell("PATH=/nowhere " + weft_program() + " launch --devices 2 --hosts " +
                        scratch("hosts") + " -- /bin/true"),
              1, "there is no mpirun in PATH; install Open MPI");
}

TEST_CASE(
    "launch without mpirun hands on exit codes, ends the ranks that are left, and cleans up") {
  const std::string folder = fresh_scratch("local ranks");
  std::filesystem::create_directories(folder);
  const auto launch = [&](const std::string& command) {
    return run_shell("PATH=/nowhere TMPDIR='" + folder + "' /usr/bin/timeout 300 " +
                     weft_program() + " launch " + command);
  };
  const Outcome ranks = launch(
      "--devices 3 -- /bin/sh -c 'echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK here; "
      "echo ${#WEFT_SECRET} characters of a secret >&2'");
  CHECK(ranks.code == 0);
  for (int r = 0; r < 3; ++r) {
    CHECK_THAT(ranks.out, Contains(fmt::format("rank {0} of 3, {0} here\n", r)));
  }
  CHECK_THAT(ranks.err, Contains("32 characters of a secret"));
  // Rank 1 fails at once; the others would sleep for longer than this test may take, one of them
  // deaf to SIGTERM.
  const Outcome failed = launch(
      "--devices 3 -- /bin/sh -c 'case $RANK in 1) exit 3;; 2) trap \"\" TERM;; esac; "
      "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do /bin/sleep 10; done'");
  CHECK(failed.code == 3);
  CHECK(launch("--devices 2 -- /bin/sh -c 'kill -9 $$'").code == 128 + 9);
  CHECK(launch("--devices 2 -- /nonexistent").code == 127);
  CHECK(launch("--devices 2 --max-restarts 1 -- /bin/sh -c 'exit 5'").code == 5);
  CHECK(std::filesystem::is_empty(folder));
}

TEST_CASE("launch runs any program and hands on its exit code") {
  // As Open MPI's mpirun says it, MPICH's, and weft launch where there is none.
  const Outcome ranks = run_weft(
      "launch --devices 3 -- sh -c 'echo rank ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}'");
  CHECK(ranks.code == 0);
  for (int r = 0; r < 3; ++r) CHECK_THAT(ranks.out, Contains(fmt::format("rank {}\n", r)));
  CHECK(run_weft("launch --devices 2 -- sh -c 'exit 3'").code == 3);
  check_error(run_weft("launch --devices 0 -- true"), 2, "--devices");
}

TEST_CASE("a rank that is killed ends the others, which say where they were") {
  const std::string run = fresh_scratch("killed");
  const Outcome outcome =
      train_with_killed_rank(run, tiny(4, "--epochs 1000 --devices 2 --strategy ddp"));
  INFO(outcome.err);
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.err, Contains("rank 1"));
  CHECK_THAT(outcome.err, Contains("all_reduce #") || Contains("all_gather #") ||
                              Contains("broadcast #") || Contains("barrier #"));
  const Outcome left = run_shell("pgrep -f -- '[w]eft train --output " + run + "'");
  CHECK(left.out == "");
}
