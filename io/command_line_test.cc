#include "io/command_line.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

using namespace weft::io;
using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

TEST_CASE("An option's help is what it takes and a phrase that ends in its default") {
  Command weft("weft", "Trains a model");
  Command& train = weft.subcommand("train", "Trains a model on images");
  int epochs = 6, parts = 8;
  double lr = 0.5;
  std::string output, file;
  std::vector<std::string> strategies = {"ddp", "fsdp"}, patterns;
  bool flip = true, hidden = false;
  train.option("FILE", file, "The file to read", {.required = true});
  train.option("--epochs", epochs, "Passes over the images", {.check = in_range(1, 10)});
  train.group("Learning");
  train.option("--lr", lr, "Learning rate at the peak of a schedule that is long to describe");
  train.option("--strategy", strategies, "Strategies, each measured in its turn on every rank",
               {.delimiter = ','});
  train.option("--freeze", patterns, "Parameters that are not trained, by name or pattern");
  train.group("Output");
  train.option("--output", output, "Directory of the run",
               {.takes = "DIR", .usual = "runs/RECIPE-N"});
  train.flag("--flip,!--no-flip", flip, "Mirror half of the images");
  train.option("--reduce", parts, "Split a batch",
               {.takes = "[N]", .usual = "8", .count = {{0, 1}}});
  train.group("");
  train.flag("--serve", hidden, "");
  CHECK(train.options() == Words{"--epochs", "--lr", "--strategy", "--freeze", "--output", "--flip",
                                 "--reduce", "--serve"});
  CHECK(train.help() == R"(Trains a model on images
Usage: train [OPTIONS] FILE

Positionals:
  FILE                        The file to read (required)

Options:
  -h,--help                   Print this help message and exit
  --epochs N                  Passes over the images (default: 6)

Learning:
  --lr X                      Learning rate at the peak of a schedule that is long to describe
                              (default: 0.5)
  --strategy NAME,...         Strategies, each measured in its turn on every rank
                              (default: ddp,fsdp)
  --freeze NAME ...           Parameters that are not trained, by name or pattern

Output:
  --output DIR                Directory of the run (default: runs/RECIPE-N)
  --flip,--no-flip            Mirror half of the images
  --reduce [N]                Split a batch (default: 8)

)");
}

TEST_CASE("Long phrases are broken between words") {
  Command weft("weft", "Weft");
  int x = 0;
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  weft.option("--count", x, words);
  std::istringstream lines(weft.help());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(line.size() <= 100);
  CHECK(count > 8);
}

TEST_CASE("A command line sets values of each kind, and leaves the others") {
  Command weft("weft", "Weft");
  int i = 1;
  int64_t count = 2, untouched = 3;
  uint64_t seed = 4;
  double lr = 5;
  std::optional<double> seconds;
  std::optional<int64_t> size;
  std::optional<bool> on, absent;
  std::vector<int> devices;
  std::vector<int64_t> batches;
  std::vector<double> betas;
  Words words;
  bool flip = true;
  weft.option("--int", i, "");
  weft.option("--count", count, "");
  weft.option("--untouched", untouched, "");
  weft.option("--seed", seed, "");
  weft.option("--lr", lr, "");
  weft.option("--seconds", seconds, "");
  weft.option("--size", size, "");
  weft.option("--devices", devices, "", {.delimiter = ','});
  weft.option("--batches", batches, "", {.delimiter = ',', .count = {{2, 2}}});
  weft.option("--betas", betas, "");
  weft.option("WORDS", words, "");
  weft.flag("--flip,!--no-flip", flip, "");
  weft.flag("--on", on, "");
  weft.flag("--absent", absent, "");
  CHECK_FALSE(weft.parse({"--int",  "-7",        "--count=5000000000",
                          "--seed", "9",         "--lr",
                          "2e-3",   "--seconds", "0.5",
                          "--size", "10",        "--devices",
                          "1,2",    "--batches", "3,4",
                          "--on",   "--betas",   "0.9",
                          "0.99",   "--no-flip", "--",
                          "a",      "--b"}));
  CHECK(i == -7);
  CHECK(count == 5000000000);
  CHECK(untouched == 3);
  CHECK(seed == 9);
  CHECK(lr == 2e-3);
  CHECK(seconds == 0.5);
  CHECK(size == 10);
  CHECK(devices == std::vector<int>{1, 2});
  CHECK(batches == std::vector<int64_t>{3, 4});
  CHECK(betas == std::vector<double>{0.9, 0.99});
  CHECK(words == Words{"a", "--b"});
  CHECK_FALSE(flip);
  CHECK(on == true);
  CHECK_FALSE(absent.has_value());
}

TEST_CASE("Whole numbers are decimal, with zeros in front or without") {
  int devices = 0;
  int64_t count = 0;
  uint64_t seed = 0;
  std::optional<int64_t> size;
  std::vector<int64_t> batches;
  double lr = 0;
  Command weft("weft", "Weft");
  weft.option("--devices", devices, "", {.check = in_range(-10, 64)});
  weft.option("--count", count, "");
  weft.option("--seed", seed, "");
  weft.option("--size", size, "");
  weft.option("--batches", batches, "", {.delimiter = ','});
  weft.option("--lr", lr, "");
  CHECK_FALSE(weft.parse({"--devices", "064", "--count=-010", "--seed", "08", "--size", "+0010",
                          "--batches", "00,016,9", "--lr", "010.5"}));
  CHECK(devices == 64);
  CHECK(count == -10);
  CHECK(seed == 8);
  CHECK(size == 10);
  CHECK(batches == std::vector<int64_t>{0, 16, 9});
  CHECK(lr == 10.5);
  for (const char* word : {"0x10", "0b1", "1e3", "true", "+-7", "7 ", "--", ""}) {
    INFO(word);
    CHECK_THROWS_WITH(weft.parse({"--count=" + std::string(word)}),
                      Contains("--count: expected a"));
  }
}

TEST_CASE("What follows a value is called in the options' order, for those that are given") {
  Command weft("weft", "Weft");
  int epochs = 0, watch = 0, other = 0;
  bool flip = true;
  std::string said;
  const auto say = [&](const char* what) { return [&said, what] { said += what; }; };
  weft.option("--epochs", epochs, "", {.then = say("epochs ")});
  weft.option("--watch", watch, "", {.usual = "10", .count = {{0, 1}}, .then = say("watch ")});
  weft.option("--other", other, "", {.then = say("other ")});
  weft.flag("--flip,!--no-flip", flip, "", {.then = say("flip ")});
  CHECK_FALSE(weft.parse({"--no-flip", "--watch", "--epochs", "3"}));
  CHECK(said == "epochs watch flip ");
  CHECK(epochs == 3);
  CHECK(watch == 10);
  CHECK_FALSE(flip);
}

TEST_CASE("A mistake in a command line is named") {
  int devices = 0, nodes = 1, rank = 0, watch = 0;
  uint64_t seed = 0;
  double share = 0.5, scale = 1;
  std::vector<double> betas;
  std::string format = "bf16", file, host, run;
  int64_t port = 0;
  Words names;
  bool is_dry = false;
  const auto parse = [&](const Words& words) {
    Command weft("weft", "Weft");
    weft.option("--devices", devices, "", {.check = positive(), .required = true});
    weft.option("--rank", rank, "", {.check = non_negative()});
    weft.option("--seed", seed, "");
    weft.option("--betas", betas, "");
    weft.option("--scale", scale, "", {.check = positive()});
    weft.option("--share", share, "", {.check = in_range(0.0, 1.0)});
    weft.option("--format", format, "", {.check = one_of({"bf16", "fp32"})});
    weft.option("--file", file, "", {.check = existing_file()});
    weft.option("--hosts", host, "");
    weft.option("--nodes", nodes, "", {.excludes = {"--hosts"}});
    weft.option("--port", port, "", {.needs = {"--hosts"}});
    weft.option("--names", names, "", {.delimiter = ','});
    weft.option("--run", run, "", {.check = not_empty()});
    weft.option("--watch", watch, "", {.usual = "10", .count = {{0, 1}}});
    weft.flag("--dry", is_dry, "");
    weft.add_check("--nodes", in_range(2, 8));
    return weft.parse(words);
  };
  const auto fault = [&](Words words) {
    words.insert(words.begin(), {"--devices", "2"});
    try {
      parse(words);
    } catch (const ParseError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(fault({}).empty());
  CHECK_THROWS_WITH(parse({}), Contains("--devices is required"));
  CHECK_THROWS_WITH(parse({"--devices", "0"}),
                    "--devices: expected a positive number, got 0; see --help");
  CHECK_THROWS_WITH(parse({"--devices", "two"}),
                    Contains("--devices: expected a whole number, got two"));
  CHECK_THROWS_WITH(parse({"--devices", "2.5"}), Contains("expected a whole number, got 2.5"));
  CHECK_THAT(fault({"--rank", "-1"}),
             Contains("--rank: expected a number that is not negative, got -1"));
  CHECK_THAT(fault({"--seed", "-1"}),
             Contains("--seed: expected a whole number, 0 or more, got -1"));
  CHECK_THAT(fault({"--betas", "0.9", "much"}), Contains("--betas: expected a number, got much"));
  for (const char* word : {"1.5", "nan", "inf"}) {
    CHECK_THAT(fault({"--share", word}),
               Contains("--share: expected 0 to 1, got ") && Contains(word));
  }
  for (const char* word : {"0", "nan", "inf"}) {
    CHECK_THAT(fault({"--scale", word}), Contains("--scale: expected a positive number, got "));
  }
  CHECK_THAT(
      fault({"--format", "bf61"}),
      Contains("--format: expected one of bf16, fp32, got \"bf61\"; did you mean \"bf16\"?"));
  CHECK_THAT(fault({"--file", "absent"}), Contains("--file: File does not exist: absent"));
  CHECK_THAT(fault({"--nodes", "2", "--hosts", "a"}), Contains("excludes"));
  CHECK(fault({"--port", "80"}) == "--port requires --hosts; see --help");
  CHECK(fault({"--port", "80", "--hosts", "a"}).empty());
  CHECK_THAT(fault({"--nodes", "9"}), Contains("--nodes: expected 2 to 8, got 9"));
  CHECK(fault({"--unknown=3"}) == "unknown option \"--unknown\"; see --help");
  CHECK(fault({"--fromat", "bf16"}) == "unknown option \"--fromat\"; did you mean \"--format\"?");
  CHECK_THROWS_WITH(parse({"--device", "2"}),
                    "unknown option \"--device\"; did you mean \"--devices\"?");
  CHECK(fault({"words"}) == "unknown argument \"words\"; see --help");
  CHECK(fault({"--", "--rank", "3"}) == "unknown argument \"--rank\"; see --help");

  // A number that is too large is none, and not the largest one.
  CHECK(fault({"--hosts", "a", "--port", "99999999999999999999"}) ==
        "--port: expected a whole number, at most 9223372036854775807, got 99999999999999999999; "
        "see --help");
  CHECK_THAT(fault({"--rank", "5000000000"}),
             Contains("--rank: expected a whole number, at most 2147483647, got 5000000000"));
  CHECK_THAT(fault({"--seed", "18446744073709551616"}), Contains("at most 18446744073709551615"));
  // An option is not the value of the one before it.
  CHECK(fault({"--hosts", "--nodes", "3"}) == "--hosts: expected a value, got --nodes; see --help");
  CHECK(fault({"--hosts", "--dry"}) == "--hosts: expected a value, got --dry; see --help");
  CHECK_THAT(fault({"--format", "--rank=1"}), Contains("--format: expected a value, got --rank=1"));
  CHECK_THAT(fault({"--names", "--dry"}), Contains("--names: expected a value, got --dry"));
  CHECK_THAT(fault({"--rank", "--dry"}), Contains("--rank: expected a whole number, got --dry"));
  CHECK(fault({"--hosts"}) == "--hosts: expected a value, got none; see --help");
  // Nor is the next word that of an option that is joined to none, nor is what it means without.
  for (const Words& words : {Words{"--watch="}, {"--watch=", "--dry"}, {"--watch=", "4"}}) {
    CHECK(fault(words) == "--watch: expected a value, got none; see --help");
  }
  CHECK(fault({"--hosts=", "a"}) == "--hosts: expected a value, got none; see --help");
  CHECK(fault({"--run", ""}) == "--run: expected a value, got none; see --help");
  CHECK(fault({"--hosts", ""}).empty());
  CHECK(fault({"--hosts=a=", "--watch=4"}).empty());
  CHECK(watch == 4);
  CHECK(fault({"--hosts", "-a"}).empty());
  CHECK(fault({"--hosts=--a"}).empty());
  CHECK(host == "--a");
  CHECK(fault({"--rank", "1", "--rank=2"}) == "--rank: expected once, got 2 times; see --help");
  CHECK(fault({"--hosts", "a", "--hosts", "b"}) ==
        "--hosts: expected once, got 2 times; see --help");
}

TEST_CASE("An unknown option is named, whatever stands around it") {
  const auto fault = [](const Words& words) {
    Command weft("weft", "Weft");
    Command& launch = weft.subcommand("launch", "Starts ranks");
    Command& train = weft.subcommand("train", "Trains");
    int devices = 0, epochs = 0;
    Words program;
    launch.option("--devices", devices, "");
    launch.option("PROGRAM", program, "", {.required = true});
    train.option("--epochs", epochs, "");
    try {
      weft.parse(words);
    } catch (const ParseError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string devices = "unknown option \"--devcies\"; did you mean \"--devices\"?";
  CHECK(fault({"launch", "--devcies", "2", "--", "true"}) == devices);
  CHECK(fault({"launch", "--devcies=2", "--", "true"}) == devices);
  CHECK(fault({"launch", "--devcies", "2", "--", "true", "--epochs"}) == devices);
  CHECK(fault({"train", "fast", "--epchs", "3"}) ==
        "unknown option \"--epchs\"; did you mean \"--epochs\"?");
  CHECK(fault({"launch", "--devices", "2", "--", "true", "--devcies"}).empty());
  CHECK(fault({"launch", "--devices", "2", "--"}) == "PROGRAM is required; see --help");
  CHECK(fault({"train", "--epochs", "3", "fast"}) == "unknown argument \"fast\"; see --help");
}

TEST_CASE("A variable of the environment stands in for an option") {
  ::setenv("WEFT_COMMAND_LINE_TEST", "3", 1);
  Command weft("weft", "Weft");
  int rank = 0;
  weft.option("--rank", rank, "", {.environment = "WEFT_COMMAND_LINE_TEST"});
  CHECK_FALSE(weft.parse(Words{}));
  CHECK(rank == 3);
  CHECK_FALSE(weft.parse({"--rank", "4"}));
  CHECK(rank == 4);
}

TEST_CASE("A program runs one command, by its name") {
  Command weft("weft", "Weft");
  weft.require_subcommand();
  weft.version("weft 1.2.3");
  weft.footer("The end.");
  std::string ran;
  Words words;
  Command& train = weft.subcommand("train", "Trains", "Training");
  train.on_parsed([&] { ran = "train"; });
  Command& kernels = weft.subcommand("kernels", "Lists kernels");
  kernels.leave_remaining();
  kernels.on_parsed([&] { words = kernels.remaining(); });

  CHECK_FALSE(weft.parse({"train"}));
  CHECK(ran == "train");
  CHECK(train.is_parsed());
  CHECK_FALSE(kernels.is_parsed());
  CHECK_FALSE(weft.parse({"kernels", "check", "--small", "gemm"}));
  CHECK(words == Words{"check", "--small", "gemm"});

  CHECK_THROWS_AS(weft.parse(Words{}), ParseError);
  CHECK_THROWS_AS(weft.parse({"train", "kernels"}), ParseError);
  CHECK_THROWS_WITH(weft.parse({"trian"}), "unknown command \"trian\"; did you mean \"train\"?");
  CHECK_THROWS_WITH(weft.parse({"paint", "--x"}), "unknown command \"paint\"; see --help");
  CHECK(weft.parse({"--version"}) == "weft 1.2.3\n");
  CHECK_THAT(*weft.parse({"--help"}), Contains("Training:\n  train") &&
                                          Contains("Subcommands:\n  kernels") &&
                                          Contains("The end."));
  CHECK_THAT(*weft.parse({"train", "--help"}),
             Contains("Usage: weft train") && !Contains("The end."));
}
