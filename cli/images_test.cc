#include "data/sets/sets.h"
#include "tests/program/run_weft.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

TEST_CASE("images writes a sheet and class folders of the images themselves") {
  const std::string sheet = scratch("sheet.png"), folder = fresh_scratch("images");
  const Outcome outcome =
      run_weft("images --split test --per-class 3 --sheet " + sheet + " --folder " + folder);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("104 x 342 pixels; from the top: disc, ring, square"));
  CHECK_THAT(outcome.out, Contains("30 images in 10 class folders"));

  // Image 21 is the third of class 1: rows are classes, columns follow the order of the set.
  const data::Image drawn = data::draw_builtin_image(data::Part::kTest, 21);
  CHECK(data::read_image(folder + "/ring/test-00021.png") == drawn);
  const data::Image picture = data::read_image(sheet);
  for (int y = 0; y < 32; ++y) {
    for (int x = 0; x < 32; ++x) {
      const uint8_t* found = picture.at(2 + 34 + y, 2 + 2 * 34 + x);
      REQUIRE(std::equal(found, found + 3, drawn.at(y, x)));
    }
  }
  // What it wrote is a data set that the other commands read.
  CHECK(run_weft("images --data folder:" + folder + " --sheet " + sheet).code == 0);
}

TEST_CASE("images explains what it cannot do") {
  check_error(run_weft("images"), 2, "expected --sheet FILE or --folder DIR");
  check_error(run_weft("images --data nowhere --sheet a.png"), 2, "nowhere");
  check_error(run_weft("images --split none --sheet a.png"), 2, "--split");
  check_error(run_weft("images --per-class 0 --sheet a.png"), 2, "--per-class");
  check_error(run_weft("images --data cifar10:/nonexistent --sheet a.png"), 1, "/nonexistent");
  check_error(run_weft("images --sheet /nonexistent/a.png"), 1, "/nonexistent");
}
