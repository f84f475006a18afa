// What the recipe cifar10-quick promises, on the images in $WEFT_TEST_DATA.
#include <thread>

#include "tests/program/train_runs.h"
#include "tests/skip.h"

using namespace weft::cli;

TEST_CASE("cifar10-quick reaches 75% on 5,000 validation images within ten minutes") {
  const char* data = std::getenv("WEFT_TEST_DATA");
  const std::string archive = std::string(data ? data : "") + "/cifar10-train-jpeg.tar.xz";
  if (!std::filesystem::exists(archive)) {
    WEFT_SKIP("CIFAR-10's images: no cifar10-train-jpeg.tar.xz in WEFT_TEST_DATA");
  }
  const std::string folder = fresh_scratch("cifar10");
  std::filesystem::create_directories(folder);
  REQUIRE(run_shell("tar xJf '" + archive + "' -C " + folder).code == 0);
  const Outcome outcome =
      run_shell(weft_program() + " train --json --recipe cifar10-quick --data cifar10:" + folder +
                " --output " + fresh_scratch("run"));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto events = parse_lines(outcome.out);
  const json& done = events.back();
  INFO(done);
  CHECK(done.at("val_accuracy").get<double>() >= 0.75);
  CHECK(done.at("test_accuracy").is_null());
  // The promise is for two cores.
  if (std::thread::hardware_concurrency() >= 2) CHECK(done.at("seconds").get<double>() < 600);
  const json state =
      json::parse(read_file(done.at("checkpoint").get<std::string>() + "/state.json"));
  CHECK(state.at("state").at("images") == json({{"train", 45000}, {"validation", 5000}}));
  std::filesystem::remove_all(folder);
}
