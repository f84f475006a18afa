#include "io/help_format.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

namespace weft::io {
namespace {

TEST_CASE("An option's help is what it takes and a phrase that ends in its default") {
  CLI::App app("Trains a model", "weft");
  app.formatter(std::make_shared<HelpFormat>());
  CLI::App& train = *app.add_subcommand("train", "Trains a model on images");
  int epochs = 6;
  double lr = 0.5;
  std::string output, file;
  std::vector<std::string> strategies = {"ddp", "fsdp"}, patterns;
  bool flip = true;
  train.add_option("FILE", file, "The file to read")->required();
  train.add_option("--epochs", epochs, "Passes over the images")
      ->check(CLI::Range(1, 10))
      ->capture_default_str();
  train.option_defaults()->group("Learning");
  train.add_option("--lr", lr, "Learning rate at the peak of a schedule that is long to describe")
      ->capture_default_str();
  train.add_option("--strategy", strategies, "Strategies, each measured in its turn on every rank")
      ->delimiter(',')
      ->capture_default_str();
  train.add_option("--freeze", patterns, "Parameters that are not trained, by name or pattern");
  train.option_defaults()->group("Output");
  train.add_option("--output", output, "Directory of the run")
      ->type_name("DIR")
      ->default_str("runs/RECIPE-N");
  train.add_flag("--flip,!--no-flip", flip, "Mirror half of the images");
  train.add_flag("--reduce{8}", epochs, "Split a batch");
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
  --reduce[=N]                Split a batch

)");
}

TEST_CASE("Long phrases are broken between words") {
  CLI::App app("Weft", "weft");
  app.formatter(std::make_shared<HelpFormat>());
  int x = 0;
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  app.add_option("--count", x, words);
  std::istringstream lines(app.help());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(line.size() <= 100);
  CHECK(count > 8);
}

}  // namespace
}  // namespace weft::io
