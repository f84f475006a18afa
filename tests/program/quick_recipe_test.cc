// What `./weft train` promises: its default recipe on the built-in images.
#include <chrono>
#include <thread>

#include "tests/program/train_runs.h"

using namespace weft::cli;

TEST_CASE("The default recipe reaches 90% on the test images within three minutes") {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome =
      run_shell(weft_program() + " train --json --output " + fresh_scratch("run"));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const json done = parse_lines(outcome.out).back();
  INFO(done);
  CHECK(done.at("test_accuracy").get<double>() >= 0.9);
  // The promise is for two cores.
  if (std::thread::hardware_concurrency() >= 2) CHECK(seconds.count() < 180);
}
