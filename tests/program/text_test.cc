// A language model from the command line: trained on text, gone on with, and written with.
#include <cmath>

#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kQuick = "--recipe gpt-quick --epochs 2 ";

std::string file_of(const std::string& name, const std::string& text) {
  write_bytes(scratch(name), {text.begin(), text.end()});
  return scratch(name);
}

std::string sentences(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("number {} follows.\n", i);
  return text;
}

}  // namespace

TEST_CASE("gpt-quick learns the grammar's text, leaves a run's files, and is written with") {
  const auto events = run_train("grammar", kQuick + "--limit-batches 12");
  const auto steps = events_of(events, "step"), epochs = events_of(events, "epoch");
  REQUIRE(steps.size() == 24);
  REQUIRE(epochs.size() == 2);
  CHECK(steps[0].at("loss") == Approx(std::log(256)).epsilon(0.05));
  CHECK(steps[23].at("loss") < 3);  // how often each byte comes leaves 2.72 nats
  CHECK(epochs[1].at("val_loss") < epochs[0].at("val_loss"));
  const json& done = events.back();
  CHECK(done.at("event") == "done");
  CHECK(done.at("entropy") == Approx(0.29).margin(0.01));
  CHECK(done.at("test_loss") == Approx(done.at("val_loss").get<double>()).epsilon(0.05));
  const std::string run = scratch("grammar");
  CHECK(done.at("checkpoint") == run + "/step-24");
  for (const char* file : {"latest", "step-24/state.json", "step-12/optimizer.safetensors",
                           "model.safetensors", "config.yaml", "metrics.csv"}) {
    INFO(file);
    CHECK(std::filesystem::exists(run + "/" + file));
  }
  const auto rows = parse_lines(read_file(run + "/metrics.jsonl"));
  REQUIRE(rows.size() == 24 + 2);
  CHECK(rows[0].at("loss/step") == steps[0].at("loss"));
  CHECK(rows[25].at("loss/validation") == epochs[1].at("val_loss"));
  CHECK(rows[25].at("epoch") == 2);
  CHECK_THAT(read_file(run + "/report.html"), Contains("bytes_per_second"));
  CHECK(run_weft("report " + run).code == 0);

  const std::string generate = "generate " + run + " --prompt 'the ' --bytes 150 ";
  const Outcome text = run_weft(generate);
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(text.out.size() == 4 + 150 + 1);
  CHECK(text.out.starts_with("the "));
  CHECK(run_weft(generate).out == text.out);
  CHECK(run_weft(generate + "--seed 1").out != text.out);
  const auto line = parse_lines(run_weft(generate + "--temperature 0 --json").out);
  REQUIRE(line.size() == 1);
  CHECK(line[0].at("prompt") == "the ");
  check_error(run_weft("generate " + run + " --prompt ''"), 2, "--prompt: is empty");
  check_error(run_weft("generate " + run + " --top-p 0"), 1, "top_p must lie in (0, 1]");
  check_error(run_weft("generate " + scratch("nowhere")), 1, "no such directory");
  check_error(run_weft("eval --checkpoint " + run), 1, "weft generate reads it");
}

TEST_CASE("A run on text that is stopped and resumed has the bits of one that is not") {
  const std::string settings =
      GENERATE(as<std::string>(), "--accumulate 2 --save-every 3",
               "--precision fp16 --initial-loss-scale 1e12 --loss-scale-window 7 --watch=5");
  const std::string arguments = kQuick + "--limit-batches 60 --batch-size 2 " + settings;
  INFO(arguments);
  run_train("text_whole", arguments);
  const std::string a = scratch("text_whole"), b = fresh_scratch("text_stopped");
  {
    BackgroundWeft weft("train --json --output " + b + " " + arguments);
    for (int i = 0; i < 3; ++i) REQUIRE(!weft.line().empty());
    weft.send(SIGINT);
    const Outcome outcome = weft.finish();
    CHECK(outcome.code == 130);
    CHECK_THAT(outcome.err, Contains("continue with: ./weft train --resume " + b + "\n"));
    CHECK(parse_lines(outcome.out).back().at("event") == "interrupted");
    CHECK(!std::filesystem::exists(weights("text_stopped")));
  }
  const Outcome end = run_weft("train --json --resume " + b);
  INFO(end.err);
  REQUIRE(end.code == 0);
  const std::string last = parse_lines(end.out).back().at("checkpoint");
  const std::string step = last.substr(last.rfind('/'));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    CHECK(read_file(a + step + file) == read_file(b + step + file));
  }
  CHECK(diff_weights("text_whole", "text_stopped") == 0);
  CHECK(parse_lines(read_file(a + "/metrics.jsonl")).size() ==
        parse_lines(read_file(b + "/metrics.jsonl")).size());
  CHECK(run_weft("train --json --resume " + b).code == 0);  // it says its end again
}

TEST_CASE("Ranks train a language model together as one does") {
  const std::string settings = kQuick + "--limit-batches 4 --optimizer sgd --lr 0.1 ";
  const auto one = run_train("text_one", settings + "--global-batch-size 8");
  for (const std::string strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    const auto two = run_train(
        "text_two", settings + "--global-batch-size 8 --devices 2 --strategy " + strategy);
    CHECK(two.back().at("test_loss") == Approx(one.back().at("test_loss").get<double>()));
    CHECK(distance("text_one", "text_two") < 1e-5);
  }
}

TEST_CASE("A file of text is trained on without naming a recipe") {
  const std::string file = file_of("numbers.txt", sentences(1000));
  const std::string run = fresh_scratch("numbers");
  const Outcome outcome =
      run_weft("train --data " + file + " --epochs 1 --limit-batches 3 --output " + run);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("gpt-quick: 1 epoch of 3 steps") && Contains("test loss ") &&
                              Contains("./weft generate " + run) && !Contains("entropy"));
}

TEST_CASE("What does not go together with text is said by name") {
  const auto check_train_error = [](const std::string& arguments, int code,
                                    const std::string& message) {
    INFO(arguments);
    const std::string output = fresh_scratch("refused");
    check_error(run_weft("train --output " + output + " " + arguments), code, message);
    CHECK(!std::filesystem::exists(output));
  };
  check_train_error("--data grammar --model cct", 2, "model: \"cct\" is not one of gpt, gpt_mini");
  check_train_error("--recipe builtin-quick --model gpt", 2,
                    "model: gpt learns text, but data 'builtin' are images");
  check_train_error("--data grammar --mixup 0.2", 2, "mixup: a setting of images");
  check_train_error("--recipe builtin-quick --model gpt --data grammar", 2, "--recipe gpt-quick");
  check_train_error("--data nothing.txt", 1, "nothing.txt");
  check_train_error("--data text:", 1, "expected a file after the colon");
  const std::string few = file_of("few.txt", sentences(10));
  check_train_error("--data " + few, 1, "bytes are too few; expected 2600 or more");
  const Outcome diverged = run_weft("train --json --limit-batches 12 --lr 1e30 --optimizer sgd " +
                                    kQuick + "--output " + fresh_scratch("diverged"));
  CHECK(diverged.code == 1);
  CHECK_THAT(diverged.err, Contains("weft: error: training diverged at step "));
}
