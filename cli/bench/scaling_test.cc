// What does not hang on the machine's speed: sizes, FLOPs, memory and their powers.
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;

TEST_CASE("FLOPs are proportional to the batch and the depth, and memory is linear in tokens") {
  const Outcome outcome =
      run_weft("bench scaling --json --steps 1 --most 1025 --axis batch,tokens,depth");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto curves = parse_lines(outcome.out);
  REQUIRE(curves.size() == 3);

  const json& batch = curves[0];
  CHECK(batch.at("axis") == "batch");
  REQUIRE(batch.at("points").size() == 7);
  CHECK(batch.at("exponents").at("flops").get<double>() == Approx(1));

  // From 257 to 1025 tokens memory grows at most as much: attention keeps no matrix of scores.
  const json& tokens = curves[1].at("points");
  REQUIRE(tokens.size() == 3);
  const auto bytes = [&](size_t i) { return tokens[i].at("peak_bytes").get<double>(); };
  CHECK(bytes(2) / bytes(1) < 1025.0 / 257);
  CHECK(curves[1].at("exponents").at("flops").get<double>() > 1);

  // A layer of 65 tokens and width 192, forward: 12 products of width^2 a token and two of
  // attention's; embedding and head are the same for each depth.
  const json& depth = curves[2].at("points");
  const double layer = 4 * (12 * 2.0 * 65 * 192 * 192 + 2 * 2.0 * 65 * 65 * 192);
  CHECK(depth[1].at("flops").get<double>() - depth[0].at("flops").get<double>() ==
        Approx(3 * layer));
  for (const json& curve : curves) {
    for (const json& point : curve.at("points")) CHECK(point.at("step_ms").get<double>() > 0);
    CHECK(curve.at("growth_over_work").get<double>() > 0);
  }
}

TEST_CASE("an axis that is none, and a page that cannot be written, are named") {
  const Outcome axis = run_weft("bench scaling --axis colour");
  CHECK(axis.code == 2);
  CHECK(axis.err.find("colour") != std::string::npos);
  const Outcome page =
      run_weft("bench scaling --axis depth --most 1 --steps 1 --html /nowhere/page.html");
  CHECK(page.code == 1);
  CHECK(page.err.find("/nowhere/page.html") != std::string::npos);
}
