// ViT-B/16 on one, two and four ranks: memory within 5% of the formulas, traffic exactly theirs.
// Minutes, and 10 GB.
#include "tests/program/train_runs.h"

using namespace weft::cli;

TEST_CASE("ViT-B/16 keeps and sends what the formulas say") {
  const Outcome outcome =
      run_shell("timeout 3000 " + weft_program() +
                " bench sharding --json --check --model vit_b_16 --devices 1,2,4");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  const auto results = parse_lines(outcome.out);
  // Eleven strategies on one rank, ten on two and on four, as threads and but for dp as processes.
  CHECK(results.size() == (11 + 10 + 10) + (10 + 9 + 9));
  for (const json& result : results) {
    INFO(result.dump());
    CHECK(result.at("parameters") == 86567656);
    CHECK(result.at("agrees") == true);
  }
}
