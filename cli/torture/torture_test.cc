#include "tests/program/run_weft.h"

using namespace weft::cli;
using Catch::Contains;

TEST_CASE("each ordeal is tried, and nothing is lost") {
  const Outcome outcome = run_weft("torture --short --seed 1");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  for (const char* ordeal : {"kill", "kill-io", "fail-io", "signal", "two-runs", "places", "flip",
                             "truncate", "files", "ranks", "parts", "soak", "repeat"}) {
    CHECK_THAT(outcome.out, Contains(ordeal));
  }
  CHECK_THAT(outcome.out, Contains("nothing lost"));
}

TEST_CASE("ordeals can be chosen") {
  const Outcome outcome = run_weft("torture --short --only two-runs,truncate");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("two-runs") && Contains("truncate") && !Contains("soak"));
}
