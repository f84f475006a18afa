// weft launch: what ranks find in their environment, joining those that are there, several hosts
// without mpirun, and runs whose ranks change in number.
#include "dist/comm/processes/launch.h"
#include "tests/program/train_runs.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;
using dist::has_mpirun;

namespace {

const std::string kNoMpirun = "PATH=/nowhere ", kShell = " -- /bin/sh -c ";

std::string small(const std::string& more) {
  static const std::string folder = make_colour_folders("launch_images", 30, 16, 16);
  return fmt::format("--model vit_lite --data folder:{} --limit-batches 2 --seed 5 {}", folder,
                     more);
}
std::string tiny(const std::string& more) { return small("--global-batch-size 4 " + more); }

}  // namespace

TEST_CASE("ranks have torchrun's variables, whoever starts them") {
  const std::string say =
      "'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, host "
      "$GROUP_RANK, at $MASTER_ADDR, ${MASTER_PORT:+a port}'";
  for (const std::string& environment : {std::string(), kNoMpirun}) {
    INFO(environment);
    const Outcome outcome = run_shell(environment + "/usr/bin/timeout 300 " + weft_program() +
                                      " launch --devices 3" + kShell + say);
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    for (int r = 0; r < 3; ++r) {
      CHECK_THAT(outcome.out,
                 Contains(fmt::format("{0} of 3, {0} of 3, host 0, at 127.0.0.1, a port\n", r)));
    }
  }
  const Outcome set =
      run_shell("MASTER_ADDR=10.1.2.3 MASTER_PORT=12345 " + weft_program() + " launch --devices 2" +
                kShell + "'echo $MASTER_ADDR:$MASTER_PORT'");
  CHECK(set.out == "10.1.2.3:12345\n10.1.2.3:12345\n");
  check_error(run_shell("MASTER_PORT=port " + weft_program() + " launch --devices 2 -- true"), 1,
              "MASTER_PORT: expected a number from 1 to 65535, got \"port\"");
}

TEST_CASE("a process that something has started as a rank is that rank") {
  const std::string rank = "RANK=1 WORLD_SIZE=2 " + weft_program() + " launch ";
  CHECK(run_shell(rank + kShell + "'echo $RANK of $WORLD_SIZE'").out == "1 of 2\n");
  CHECK(run_shell(rank + "--devices 2 -- sh -c 'exit 7'").code == 7);
  check_error(run_shell(rank + "--devices 3 -- true"), 2, "--devices 3: 2 ranks were started");
  CHECK(run_shell(rank + "--devices auto -- sh -c 'exit 7'").code == 7);
  check_error(run_weft("launch -- true"), 2, "--devices: how many ranks?");
  // What is missing is filled in; what is no rank is an error.
  CHECK(
      run_shell(rank + kShell + "'echo $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK'").out ==
      "0 of 1, host 1\n");
  const auto launched_by = [](const std::string& environment) {
    return run_shell(environment + " " + weft_program() + " launch" + kShell +
                     "'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE'");
  };
  check_error(launched_by("RANK=y WORLD_SIZE=2"), 1,
              "RANK: expected a number from 0 to 1, got \"y\"");
  check_error(launched_by("RANK=0 WORLD_SIZE=x"), 1,
              "WORLD_SIZE: expected a number from 1 to 1048576, got \"x\"");
  check_error(launched_by("RANK=5 WORLD_SIZE=2"), 1,
              "RANK: expected a number from 0 to 1, got \"5\"");
  const std::string task = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 ";
  CHECK(launched_by(task).out == "1 of 2, 1 of 2\n");
  CHECK(launched_by(task + "PMIX_RANK=1 SLURM_STEP_TASKS_PER_NODE=2").out == "1 of 2, 1 of 2\n");
  // Under a plugin for MPI, too, the only task of a step starts ranks, and so does a node's.
  const std::string pmix = kNoMpirun + "MASTER_ADDR=127.0.0.1 PMIX_RANK=0 PMIX_NAMESPACE=outer ";
  const std::string alone = kShell + "'echo $RANK of $WORLD_SIZE ${PMIX_NAMESPACE-alone}'";
  const auto check_started = [&](const std::string& tasks, const std::string& options, int size) {
    const Outcome started =
        run_shell(pmix + "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=" + tasks + " " +
                  weft_program() + " launch " + options + alone);
    INFO(started.err);
    CHECK_THAT(started.out, Contains(fmt::format("0 of {} alone\n", size)) &&
                                Contains(fmt::format("1 of {} alone\n", size)));
  };
  check_started("1", "--devices 2", 2);
  check_started("2", "--devices 4 --nodes 2", 4);
  // The batch script's own variables make no rank.
  check_error(launched_by(task + "SLURM_STEP_ID=4294967291"), 2, "--devices: how many ranks?");
}

TEST_CASE("all devices of a machine without a GPU are the CPU") {
  const std::string here = "CUDA_VISIBLE_DEVICES= " + weft_program();
  for (const std::string all : {"auto", "-1"}) {
    const std::string launch = here + " launch --devices " + all;
    CHECK(run_shell(launch + kShell + "'echo $RANK of $WORLD_SIZE'").out == "0 of 1\n");
    check_error(run_shell(launch + " --nodes 2 -- true"), 2,
                "--devices " + all + ": all of this machine; with --nodes expected the number");
    CHECK_THAT(run_shell(here + " estimate --model resnet8 --devices " + all).out,
               Contains("on each of 1 device"));
  }
  check_error(run_weft("train --hosts /dev/null --devices auto"), 2,
              "--devices auto: all of this machine; with --hosts expected the number");
  check_error(run_weft("launch --devices 65537 -- true"), 2,
              "--devices: expected a number from 1 to 65536, or auto, got \"65537\"");
  check_error(run_weft("estimate --devices 0,1"), 2, "--devices: expected a number from 1 to");
}

TEST_CASE("hosts without mpirun meet at an address, and train as one host does") {
  run_train("one_host", tiny("--epochs 1 --devices 2"));
  const std::string run = fresh_scratch("two_hosts");
  const auto host = [&](int number) {
    return fmt::format(
        "/usr/bin/timeout 300 {0} launch --devices 2 --nodes 2 --node-rank {1} -- {0} train "
        "--output "
        "{2} {3}",
        weft_program(), number, run, tiny("--epochs 1"));
  };
  const Outcome outcome =
      run_shell("export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)); " + host(1) +
                " & " + host(0) + "; code=$?; wait $! && exit $code");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(diff_weights("one_host", "two_hosts") == 0);
  check_error(run_weft("launch --devices 3 --nodes 2 -- true"), 1,
              "3 ranks cannot be dealt out evenly to 2 hosts");
  check_error(run_weft("launch --devices 4 --nodes 2 -- true"), 1,
              "several hosts need MASTER_ADDR");
  check_error(run_weft("launch --devices 2 --node-rank 1 -- true"), 2,
              "--node-rank: expected a host's number below 1, got 1; --nodes says how many");
  check_error(run_weft("launch --devices 4 --nodes 2 --node-rank 2 -- true"), 2,
              "--node-rank: expected a host's number below 2, got 2");
  const std::string launch = "launch --devices 4 --nodes 2 --max-restarts 2 ";
  check_error(run_weft(launch + "--min-devices 2 -- true"), 2,
              "--min-devices excludes --nodes 2: the launchers of all hosts must start again");
  check_error(run_weft(launch + "--devices-file /dev/null -- true"), 2,
              "--devices-file excludes --nodes 2");
}

TEST_CASE("launchers of several hosts start their ranks again together") {
  const auto host = [](int number) {
    return fmt::format(
        "{} /usr/bin/timeout 300 {} launch --devices 2 --nodes 2 --node-rank {} --max-restarts 1 "
        "-- /bin/sh -c 'echo $RANK after $WEFT_RESTART; exit $((${{WEFT_RESTART:-4}} - 1))'",
        kNoMpirun, weft_program(), number);
  };
  const Outcome outcome = run_shell("export MASTER_ADDR=127.0.0.1; " + host(1) + " & " + host(0) +
                                    "; code=$?; wait $! && exit $code");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("0 after\n") && Contains("1 after\n") &&
                              Contains("0 after 1\n") && Contains("1 after 1\n"));
}

TEST_CASE("hosts in a file are mpirun's, for a training that starts ranks") {
  const std::string file = scratch("hosts");
  std::ofstream(file) << "localhost slots=2\n";
  const std::string expected = "--hosts " + file + ": expected ranks for them, --devices 2 or more";
  for (const std::string settings : {"", "--devices 1 ", "--devices 2 --strategy dp "}) {
    check_error(run_weft("train --hosts " + file + " " + settings + tiny("--epochs 1")), 2,
                expected);
  }
  if (!has_mpirun()) WEFT_SKIP("ranks under mpirun: there is none of the MPI of this build");
  const std::string empty = scratch("no_hosts");
  std::ofstream(empty) << "\n";
  for (const std::string& command : {"launch --devices 2 --hosts " + empty + " -- true",
                                     "train --devices 2 --hosts " + empty + " --output " +
                                         scratch("none") + " " + tiny("--epochs 1")}) {
    check_error(run_weft(command), 1, empty + ": expected a host on each line");
  }
  run_train("with_hosts", tiny("--epochs 1 --devices 2 --hosts " + file));
  run_train("without_hosts", tiny("--epochs 1 --devices 2"));
  CHECK(diff_weights("with_hosts", "without_hosts") == 0);
}

TEST_CASE("a program goes on with the ranks that are left, or that a file asks for") {
  const std::string start = kNoMpirun + "/usr/bin/timeout 300 " + weft_program() + " launch ";
  const Outcome left = run_shell(start + "--devices 4 --min-devices 2 --max-restarts 3" + kShell +
                                 "'echo $RANK of $WORLD_SIZE; [ $RANK -lt 2 ] || kill -9 $$; "
                                 "echo first $WEFT_FIRST_RANKS'");
  INFO(left.err);
  CHECK(left.code == 0);
  // The first to be killed may leave no time to the other.
  CHECK_THAT(left.out, (Contains("2 of 4\n") || Contains("3 of 4\n")) && Contains("1 of 2\n"));
  CHECK_THAT(left.out, Contains("first 4\n"));
  CHECK_THAT(left.err, Contains("on 2 ranks"));
  // An error loses nobody, whoever starts the ranks; fewer than so many are no run.
  for (const std::string& environment : {std::string(), kNoMpirun}) {
    const Outcome error =
        run_shell(environment + "/usr/bin/timeout 300 " + weft_program() +
                  " launch --devices 2 --min-devices 1 --max-restarts 1" + kShell +
                  "'echo $RANK of $WORLD_SIZE, first ${WEFT_FIRST_RANKS:-none}; "
                  "exit 3'");
    CHECK(error.code == 3);
    CHECK_THAT(error.out, Contains(" of 2, first none\n") && Contains(" of 2, first 2\n"));
    CHECK_THAT(error.err, Contains("restart 1 of 1, on 2 ranks"));
  }
  const Outcome few = run_shell(start + "--devices 2 --min-devices 2 --max-restarts 5" + kShell +
                                "'[ $RANK = 0 ] || kill -9 $$; exec /bin/sleep 50'");
  CHECK(few.code == 137);
  CHECK_THAT(few.err, Contains("1 are left of at least 2"));
  for (const std::string& command :
       {std::string("launch --devices 2 --max-restarts 1 --min-devices 3 -- true"),
        "train --devices 2 --max-restarts 1 --min-devices 3 --output " + scratch("none") + " " +
            tiny("")}) {
    check_error(run_weft(command), 2,
                "--min-devices: expected a number of devices, at most 2, got 3");
  }
  check_error(run_weft("launch --devices 2 --min-devices 1 -- true"), 2,
              "--min-devices requires --max-restarts");
  const std::string file = scratch("devices");
  std::ofstream(file) << "two\n";
  check_error(
      run_weft("launch --devices 2 --devices-file " + file + " -- true"), 2,
      "--devices-file: " + file + ": expected a number of ranks from 1 to 65536, got \"two\"");
  std::ofstream(file) << "1\n";
  const Outcome added = run_shell(start + "--devices 1 --devices-file " + file + kShell +
                                  "'echo $RANK of $WORLD_SIZE; [ $WORLD_SIZE = 3 ] && exit 0; "
                                  "echo 3 >" +
                                  file + "; exec /bin/sleep 50'");
  INFO(added.err);
  CHECK(added.code == 0);
  CHECK_THAT(added.out, Contains("0 of 1\n") && Contains("2 of 3\n"));
  CHECK_THAT(added.err, Contains("says 3: going on with so many ranks"));
}

TEST_CASE("a training goes on with the ranks that are left, from its last checkpoint") {
  const std::string run = fresh_scratch("lost");
  const Outcome outcome =
      train_with_killed_rank(run, "--json --max-restarts 1 --min-devices 1 " +
                                      tiny("--epochs 60 --devices 2 --save-every 2"));
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("restart 1 of 1, on 1 rank\n"));
  CHECK_THAT(outcome.out, Contains("{\"event\":\"done\""));
}

TEST_CASE("trap: a rank that is lost before the first checkpoint leaves the global batch") {
  const std::string folder = make_colour_folders("many_launch_images", 300, 16, 16);
  const std::string rule = scratch("rule.json");
  std::ofstream(rule) << R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})";
  const Outcome outcome = train_with_killed_rank(
      fresh_scratch("lost_early"),
      fmt::format("--max-restarts 1 --min-devices 1 --model vit_lite --data folder:{} --config {} "
                  "--devices 3 --strategy fsdp --epochs 1 --limit-val-batches 1",
                  folder, rule),
      "", "; batch 6 of 3");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("restart 1 of 1, on 2 ranks\n"));
  CHECK_THAT(outcome.out, Contains("; batch 6 of 3\n") && Contains("; batch 6 of 2\n"));

  // The ranks know it from their environment, so weft launch does as well.
  run_train("of_three", small("--epochs 1 --global-batch-size 6"));
  const Outcome again = run_shell(fmt::format(
      "{0} /usr/bin/timeout 300 {1} launch --devices 1 -- /usr/bin/env WEFT_RESTART=1 "
      "WEFT_FIRST_RANKS=3 {1} train --output {2} {3}",
      kNoMpirun, weft_program(), fresh_scratch("of_one"), small("--epochs 1 --batch-size 2")));
  INFO(again.err);
  CHECK(again.code == 0);
  CHECK(diff_weights("of_three", "of_one") == 0);
}

TEST_CASE("dp's devices are threads, under a launcher, too, and do not change in number") {
  const std::string settings = small("--epochs 1 --batch-size 2 --devices 2 --strategy dp");
  const std::string file = scratch("threads");
  std::ofstream(file) << "2\n";
  check_error(
      run_weft("train --output " + scratch("none") + " --devices-file " + file + " " + settings), 2,
      "--devices-file " + file + ": strategy dp has threads of one process");
  run_train("threads", settings);
  const Outcome launched =
      run_shell(fmt::format("timeout 300 {0} launch --devices 1 -- {0} train --output {1} {2}",
                            weft_program(), fresh_scratch("launched_threads"), settings));
  INFO(launched.err);
  CHECK(launched.code == 0);
  CHECK_THAT(launched.out, Contains("dp on 2 threads") && Contains("; batch 4 of 2\n"));
  CHECK(diff_weights("threads", "launched_threads") == 0);
}

TEST_CASE("a training goes on with as many of the ranks that are left as its strategy takes") {
  const std::string run = fresh_scratch("divided");
  const Outcome outcome = train_with_killed_rank(
      run, "--json --max-restarts 2 --min-devices 2 " +
               tiny("--epochs 30 --devices 4 --strategy hsdp --shard-size 2 --save-every 2"));
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("restart 1 of 2, on 2 ranks: shard-size 2 does not divide 3") &&
                              !Contains("restart 2 of 2"));
  CHECK_THAT(outcome.out, Contains("{\"event\":\"done\""));
}

TEST_CASE("a training that no number of the ranks that are left can go on with ends") {
  const Outcome outcome = train_with_killed_rank(
      fresh_scratch("undivided"),
      "--max-restarts 2 --min-devices 3 " +
          tiny("--epochs 1000 --devices 4 --strategy tp --tensor-parallel 2 --save-every 2"));
  INFO(outcome.err);
  CHECK(outcome.code == 128 + 9);
  CHECK_THAT(outcome.err, Contains("cannot be started again on 3 ranks: tensor-parallel 2 does not "
                                   "divide 3 devices") &&
                              !Contains("restart 1 of 2"));
}

TEST_CASE("a training takes up ranks that are added") {
  const std::string run = fresh_scratch("added"), file = scratch("train_devices");
  std::ofstream(file) << "1\n";
  const Outcome outcome = run_shell(
      fmt::format("timeout 300 {0} train --json --output {1} --devices-file {2} {3} & run=$!; "
                  "for i in $(seq 400); do [ -e {1}/latest ] && break; sleep 0.05; done; echo 2 "
                  ">{2}; wait $run",
                  weft_program(), run, file, tiny("--epochs 60 --devices 1 --save-every 2")));
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("says 2: going on with so many ranks"));
  CHECK_THAT(outcome.out, Contains("{\"event\":\"done\""));
}
