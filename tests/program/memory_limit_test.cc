// The program where the system gives it less memory than it needs.
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;

TEST_CASE("Where memory is short the program ends by an error, not by a signal") {
  run_train("small", "--model resnet8 --epochs 1 --limit-batches 1 --batch-size 4");
  int errors = 0;
  for (int limit = 80000; limit <= 130000; limit += 5000) {
    const Outcome outcome = run_shell(
        fmt::format("ulimit -c 0; ulimit -v {}; timeout 300 {} eval --threads 1 --device cpu "
                    "--limit-batches 1 --checkpoint {}",
                    limit, weft_program(), scratch("small")));
    INFO(limit << "\n" << outcome.err);
    CHECK((outcome.code == 0 || outcome.code == 1));
    errors += outcome.code == 1;
  }
  INFO("of 11 limits " << errors << " were too low");
  CHECK(errors < 11);
}
