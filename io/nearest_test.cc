#include "io/nearest.h"

#include <catch2/catch.hpp>

using namespace weft::io;

TEST_CASE("the nearest name is what was probably meant, or nothing") {
  const std::vector<std::string> names = {"batch-size", "epochs", "lr", "weight-decay", "warmup"};
  CHECK(nearest("batchsize", names) == "batch-size");
  CHECK(nearest("bacth-size", names) == "batch-size");
  CHECK(nearest("BATCH_SIZE", names) == "batch-size");
  CHECK(nearest("epoch", names) == "epochs");
  CHECK(nearest("wieght-decya", names) == "weight-decay");
  CHECK(nearest("lr", names) == "lr");
  CHECK(nearest("rl", names) == "lr");
  CHECK(nearest("momentum", names).empty());
  CHECK(nearest("", names).empty());
  CHECK(nearest("x", {}).empty());
  CHECK(nearest(std::string(1 << 20, 'x'), names).empty());
  CHECK(did_you_mean("epoch", names) == "; did you mean \"epochs\"?");
  CHECK(did_you_mean("quux", names).empty());
}

TEST_CASE("a name's beginning is nearer than another name of few edits") {
  const std::vector<std::string> names = {
      "watch", "global-batch-size", "batch-size", "batch-sizes", "flip", "lr"};
  CHECK(nearest("batch", names) == "batch-size");
  CHECK(nearest("Batch", names) == "batch-size");
  CHECK(nearest("batch_sizes", names) == "batch-sizes");
  CHECK(nearest("--batch", {"--watch", "--batch-size"}) == "--batch-size");
  CHECK(nearest("ba", names).empty());
  CHECK(nearest("flop", names) == "flip");
}
