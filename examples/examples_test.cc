// The programs are run: the plain loop and its scaled versions train the same model, the others
// learn.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "tests/program/run_weft.h"

using namespace weft;
using weft::cli::Outcome;

namespace {

Outcome run_example(const std::string& name, const std::string& arguments,
                    const std::string& environment = "") {
  const std::string program = std::filesystem::exists("examples/" + name)
                                  ? "examples/" + name
                                  : "bazel-bin/examples/" + name;
  return cli::run_shell("GOMP_SPINCOUNT=0 " + environment + " timeout 300 " + program + " " +
                        arguments);
}

/// The lines of a source that say something, without their comments.
std::vector<std::string> code_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    line.erase(std::min(line.find("//"), line.size()));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

/// The lines of b that are not in a longest common subsequence with a.
std::vector<std::string> lines_that_differ(const std::vector<std::string>& a,
                                           const std::vector<std::string>& b) {
  std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::vector<std::string> differ;
  for (size_t i = 0, j = 0; j < b.size();) {
    if (i < a.size() && a[i] == b[j]) {
      ++i, ++j;
    } else if (i < a.size() && common[i + 1][j] >= common[i][j + 1]) {
      ++i;
    } else {
      differ.push_back(b[j++]);
    }
  }
  return differ;
}

double distance(const std::string& a, const std::string& b) {
  const auto x = io::read_safetensors(a).tensors, y = io::read_safetensors(b).tensors;
  REQUIRE(x.size() == y.size());
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    REQUIRE(x[i].first == y[i].first);
    const auto u = x[i].second.to_vector(), v = y[i].second.to_vector();
    for (size_t j = 0; j < u.size(); ++j) largest = std::max(largest, std::abs(u[j] - v[j]));
  }
  return largest;
}

}  // namespace

TEST_CASE("the plain loop and its scaled versions train the same model") {
  const std::string plain = cli::scratch("plain.safetensors");
  const Outcome first = run_example("plain_training", plain);
  INFO(first.err);
  REQUIRE(first.code == 0);
  for (const auto& [devices, strategy] : {std::pair("1", ""),
                                          {"2", ""},
                                          {"2", "FSDP"},
                                          {"4", "deepspeed_stage_1"},
                                          {"2", "tp"},
                                          {"2", "pipeline"},
                                          {"4", "dp"}}) {
    const std::string scaled = cli::scratch("scaled.safetensors");
    const Outcome outcome =
        run_example("scaled_training", scaled,
                    std::string("WEFT_DEVICES=") + devices + " WEFT_STRATEGY=" + strategy);
    INFO(devices << " " << strategy << "\n" << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 10);
    // Ten steps of Adam carry roundings of the sums at most as far as its steps of 1e-3 allow; a
    // rank left out would move weights by whole steps.
    CHECK(distance(plain, scaled) < 2e-4);
  }
}

TEST_CASE("two nodes train the model of one") {
  const std::string one = cli::scratch("one_node.safetensors"),
                    two = cli::scratch("two_nodes.safetensors");
  const std::string strategy = "WEFT_STRATEGY=fsdp";
  const Outcome alone = run_example("scaled_training", one, "WEFT_DEVICES=2 " + strategy);
  INFO(alone.err);
  REQUIRE(alone.code == 0);
  // The nodes' launchers and their ranks meet at an address of this machine.
  const std::string program = std::filesystem::absolute(
      std::filesystem::exists("examples/scaled_training") ? "examples/scaled_training"
                                                          : "bazel-bin/examples/scaled_training");
  const auto node = [&](int number, const std::string& nodes) {
    return "WEFT_DEVICES=1 WEFT_NUM_NODES=" + nodes + " " + strategy +
           " GOMP_SPINCOUNT=0 timeout 120 " + cli::weft_program() +
           " launch --devices 2 --nodes 2 --node-rank " + std::to_string(number) + " -- " +
           program + " " + two;
  };
  const auto run = [&](const std::string& nodes) {
    return cli::run_shell("export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)); " +
                          node(1, nodes) + " & " + node(0, nodes) +
                          "; code=$?; wait $! && exit $code");
  };
  const Outcome outcome = run("2");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 10);
  CHECK(distance(one, two) == 0);
  const Outcome fewer = run("3");
  CHECK(fewer.code != 0);
  CHECK_THAT(fewer.err,
             Catch::Matchers::Contains("3 devices were asked for, 2 ranks were started"));
  const Outcome unlaunched =
      run_example("scaled_training", two, "WEFT_DEVICES=1 WEFT_NUM_NODES=2 " + strategy);
  CHECK(unlaunched.code != 0);
  CHECK_THAT(unlaunched.err, Catch::Matchers::Contains("2 nodes need a launcher"));
}

TEST_CASE("five lines scale a program, the model's structure included") {
  const std::vector<std::string> plain = code_of("examples/plain_training.cc"),
                                 scaled = code_of("examples/scaled_training.cc");
  const std::vector<std::string> differ = lines_that_differ(plain, scaled);
  const std::vector<std::string> five = {"train::Fabric fabric(", "fabric.launch(", "fabric.setup(",
                                         "fabric.setup_dataloader(", "fabric.backward("};
  const std::vector<std::string> output = {"#include \"train/fabric.h\"", "fabric.print(",
                                           "fabric.save("};
  CHECK(differ.size() == five.size() + output.size());
  for (const auto& words : {five, output}) {
    for (const std::string& word : words) {
      INFO(word);
      CHECK(std::ranges::count_if(differ, [&](const std::string& line) {
              return line.find(word) != std::string::npos;
            }) == 1);
    }
  }
  // What the plain program says in their place.
  CHECK(lines_that_differ(scaled, plain).size() == 3);
}

TEST_CASE("a gpt says how far it is from the entropy of its text") {
  const Outcome outcome = run_example("gpt", "60");
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string words = "held-out text: ";
  const size_t place = outcome.out.find(words);
  REQUIRE(place != std::string::npos);
  CHECK(outcome.out.find("nats per byte, its entropy 0.2919\nthe ", place) != std::string::npos);
  // It begins at ln 256 = 5.5. To know how often each byte comes, the first thing learned, leaves
  // 2.7.
  const double loss = std::stod(outcome.out.substr(place + words.size()));
  CHECK(loss < 3);
  CHECK(loss > 0.2919);
}

TEST_CASE("two models and two optimizers learn a ring") {
  for (const std::string environment : {"", "WEFT_PRECISION=16-mixed"}) {
    const Outcome outcome = run_example("gan", "", environment);
    INFO(environment << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    // The last line: "mean distance from the ring 0.123".
    const size_t place = outcome.out.rfind("ring ");
    REQUIRE(place != std::string::npos);
    CHECK(std::stod(outcome.out.substr(place + 5)) < 0.25);
  }
  // On two devices: the same figures, whatever is sharded.
  const Outcome ddp = run_example("gan", "10", "WEFT_DEVICES=2 WEFT_STRATEGY=ddp");
  const Outcome fsdp = run_example("gan", "10", "WEFT_DEVICES=2 WEFT_STRATEGY=fsdp");
  INFO(ddp.err << fsdp.err);
  REQUIRE(ddp.code == 0);
  REQUIRE(fsdp.code == 0);
  CHECK(ddp.out.starts_with("mean distance"));
  CHECK(fsdp.out == ddp.out);
  // Cut over devices, both train on what one device does.
  const auto distance_of = [](const Outcome& outcome) {
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return std::stod(outcome.out.substr(outcome.out.rfind("ring ") + 5));
  };
  const double one = distance_of(run_example("gan", "10"));
  for (const std::string strategy : {"tp", "pipeline", "dp"}) {
    INFO(strategy);
    const Outcome cut = run_example("gan", "10", "WEFT_DEVICES=2 WEFT_STRATEGY=" + strategy);
    CHECK(distance_of(cut) == Approx(one).margin(0.0011));
  }
  const Outcome wrong = run_example("gan", "abc");
  CHECK(wrong.code == 2);
  CHECK(wrong.err == "gan: expected a number of steps, got \"abc\"\n");
}

TEST_CASE("an error in an example is said, and is no signal") {
  for (const std::string name : {"scaled_training", "gan", "autoencoder"}) {
    const Outcome outcome = run_example(name, "", "WEFT_DEVICES=0");
    INFO(name << "\n" << outcome.err);
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err,
               Catch::Matchers::EndsWith(
                   "_DEVICES: devices: expected a positive number, \"auto\" or -1, got "
                   "0\n"));
  }
  const Outcome plain = run_example("plain_training", "/nowhere/trained.safetensors");
  INFO(plain.err);
  CHECK(plain.code == 1);
  CHECK_THAT(plain.err, Catch::Matchers::StartsWith("training: cannot create /nowhere/"));
}

TEST_CASE("an autoencoder learns, goes on where it was, and runs on several devices") {
  const auto run = [](const std::string& arguments, const std::string& environment = "") {
    const Outcome outcome = run_example("autoencoder", arguments, environment);
    INFO(environment << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const std::string whole = cli::fresh_scratch("autoencoder"),
                    parts = cli::fresh_scratch("autoencoder_parts");
  CHECK_THAT(run(whole + " builtin 100"), Catch::Matchers::Contains("step 100: max_steps = 100"));
  // Steps 50 and 100.
  const io::Path figures = io::Path(whole) / "metrics.csv";
  std::ifstream file(figures);
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    // step,epoch,train_loss_step,lr
    if (!line.starts_with("step"))
      losses.push_back(std::stod(line.substr(line.find(',', line.find(',') + 1) + 1)));
  }
  REQUIRE(losses.size() == 2);
  CHECK(losses[1] < 0.8 * losses[0]);

  run(parts + " builtin 30");
  CHECK_THAT(run(parts + " builtin 100"),
             Catch::Matchers::Contains("at epoch 0, batch 30, step 30"));
  CHECK(distance(whole + "/model.safetensors", parts + "/model.safetensors") == 0);

  for (const std::string strategy : {"ddp", "fsdp"}) {
    const std::string directory = cli::fresh_scratch("autoencoder_" + strategy);
    run(directory + " builtin 5", "WEFT_DEVICES=2 WEFT_STRATEGY=" + strategy);
    CHECK(std::filesystem::exists(directory + "/checkpoints/last.safetensors"));
  }
}
