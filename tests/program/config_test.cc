// weft config: the questions, the file that is written, and what weft config show says of files.
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains, Catch::Matchers::EndsWith, Catch::Matchers::StartsWith;

namespace {

std::string write_text(const std::string& name, const std::string& text) {
  const std::string path = scratch(name);
  std::ofstream(path) << text;
  return path;
}

Outcome answer(const std::string& output, const std::string& answers) {
  return run_weft("config --output " + output + " <" + write_text("answers.txt", answers));
}

/// What config show --json prints of `--config FILE` and more.
json shown(const std::string& arguments) {
  const Outcome outcome = run_weft("config show --json --config " + arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err == "");
  return parse_lines(outcome.out).at(0);
}

}  // namespace

TEST_CASE("config asks until an answer will do, and writes what differs from the recipe") {
  const std::string file = fresh_scratch("asked.yaml");
  // Recipe, data, model, epochs, batch size, accumulation, learning rate, precision, devices,
  // strategy, seed.
  const Outcome outcome =
      answer(file, "builtin-quik\n\n\nvit_liet\nvit_lite\nmany\n2\n32\n\n5e-4\n\n\n\n\n");
  INFO(outcome.out);
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  for (const char* said :
       {"Recipe to start from: builtin-quick, cifar10-quick, ",
        " [builtin-quick]: ", "  unknown recipe \"builtin-quik\": expected one of ",
        " [cct]: ", "  model: \"vit_liet\" is not one of ", "did you mean \"vit_lite\"?\n",
        "Passes over the training images [6]:   answer: key \"epochs\": expected a whole number, "
        "got \"many\"\n",
        "Seed of weights, order of images, augmentation and dropout [0]: "}) {
    CHECK_THAT(outcome.out, Contains(said));
  }
  CHECK_THAT(outcome.out, EndsWith(fmt::format("\nwrote {0}\n\n  weft train --config {0}\n"
                                               "  weft config show --config {0}\n",
                                               file)));
  CHECK(read_file(file) ==
        "recipe: builtin-quick\nbatch-size: 32\nepochs: 2\nlr: 0.0005\nmodel: \"vit_lite\"\n");
  check_error(run_weft("config --output " + file), 2,
              file + " is there already; expected the name of a new file");

  const json all = shown(file);
  CHECK(all.at("settings").at("model") == "vit_lite");
  CHECK(all.at("from").at("model") == file + ": model");
  CHECK(all.at("from").at("recipe") == file + ": recipe");
  CHECK(all.at("from").at("shift") == "recipe builtin-quick");
  CHECK(all.at("from").at("seed") == "default");
  CHECK(all.at("unused").at("bucket-mb") == "of strategy ddp");
  CHECK(shown(file + " --epochs 7").at("from").at("epochs") == "command line");
  const Outcome text = run_weft("config show --config " + file);
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains("\nmodel   ") && Contains("  " + file + ": model\n") &&
                           Contains("\n\nWithout effect in this run:\n") &&
                           Contains("\nbucket-mb   ") && Contains("  of strategy ddp\n"));
}

TEST_CASE("config takes the names and the devices that train takes") {
  const std::string file = fresh_scratch("named.yaml");
  const Outcome outcome = answer(file, "\n\n\n\n\n\n\nbf16-mixed\n2\nFSDP\n\n");
  INFO(outcome.out);
  CHECK(outcome.code == 0);
  CHECK(read_file(file) ==
        "recipe: builtin-quick\ndevices: 2\nprecision: \"bf16\"\nstrategy: \"fsdp\"\n");
  const std::string all = fresh_scratch("auto.yaml");
  CHECK(answer(all, "\n\n\n\n\n\n\n\nauto\nNO\n\n").code == 0);
  CHECK(read_file(all) == "recipe: builtin-quick\ndevices: auto\nstrategy: \"single\"\n");
  CHECK(shown(all).at("from").at("devices") == all + ": devices");
}

TEST_CASE("config says what is in the way before it asks, and leaves nothing half done") {
  const std::string nowhere = fresh_scratch("nowhere") + "/asked.yaml";
  check_error(run_weft("config --output " + nowhere + " </dev/null"), 1,
              "cannot create " + nowhere + ": No such file or directory");
  const std::string file = fresh_scratch("ended.yaml");
  const Outcome ended = answer(file, "\n\n");
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, StartsWith("weft: error: config: the input ended at the question \"Model"));
  CHECK(!std::filesystem::exists(file));
}

TEST_CASE("config show is a file that makes the same run, and says where it happens") {
  const std::string accelerate = write_text("mpi.yaml", R"(distributed_type: MULTI_CPU
mixed_precision: bf16
num_machines: 2
num_processes: 2
use_cpu: true
mpirun_config: {mpirun_ccl: '1', mpirun_hostfile: nodes.txt}
)");
  const json all = shown(accelerate);
  const json &settings = all.at("settings"), &from = all.at("from");
  CHECK(settings.at("device") == "cpu");
  CHECK(from.at("device") == accelerate + ": use_cpu");
  CHECK(settings.at("hosts") == "nodes.txt");
  CHECK(from.at("hosts") == accelerate + ": mpirun_hostfile");
  CHECK_THAT(all.at("notes").at(1), Contains("num_machines: 2 hosts, which mpirun_hostfile names"));
  const Outcome text = run_weft("config show --config " + accelerate);
  CHECK_THAT(text.out, Contains("\nhosts   ") && Contains(": mpirun_hostfile\n") &&
                           Contains("\ndevice   ") && Contains(": use_cpu\n") &&
                           Contains("\nnote: mpirun_config.mpirun_ccl changes nothing here"));
  const std::string own = write_text("own.json", settings.dump());
  CHECK(shown(own).at("settings") == settings);
  CHECK(shown(own).at("from").at("device") == own + ": device");
  CHECK(!shown(write_text("bare.yaml", "epochs: 2")).at("settings").contains("device"));
}

TEST_CASE("what a file says of device and hosts holds for the run") {
  const std::string train = "train --output " + scratch("none") + " --config ";
  check_error(run_weft(train + write_text("device.yaml", "device: cuda:99")), 1,
              "device cuda:99 is not available");
  check_error(run_weft(train + write_text("hosts.yaml", "hosts: /nowhere/nodes\ndevices: 2")), 2,
              "hosts.yaml: key \"hosts\": /nowhere/nodes is not there");
  check_error(run_weft(train + write_text("gpu.yaml", "device: gpu")), 2,
              "gpu.yaml: key \"device\": unknown device \"gpu\"");
  CHECK(!std::filesystem::exists(scratch("none")));
}

TEST_CASE("config show refuses what train does") {
  check_error(run_weft("config show --epochs 0"), 2, "epochs: expected a positive number");
  check_error(run_weft("config show --config /nowhere/run.yaml"), 2, "cannot read /nowhere");
  const std::string file = write_text("recipe.yaml", "recipe: none");
  check_error(run_weft("config show --config " + file), 2,
              file + ": key \"recipe\": unknown recipe \"none\": expected one of builtin-quick");
  check_error(run_weft("config show --output x"), 2, "unknown option \"--output\"");
  for (const std::string option : {"recipe", "config", "strategy", "devices"}) {
    check_error(run_weft("config show --" + option + " \"\""), 2,
                "--" + option + ": expected a value, got none");
  }
  for (const std::string option : {"output", "resume"}) {
    check_error(run_weft("train --" + option + " \"\""), 2,
                "--" + option + ": expected a value, got none");
  }
  check_error(run_weft("train -- --lr 3"), 2, "unknown argument \"--lr\"; see --help");
  CHECK_THAT(run_weft("config show --batch-size 064 --json").out, Contains("\"batch-size\":64"));
}
