#include "cli/step/step_bytes.h"

#include <catch2/catch.hpp>

using namespace weft;
using namespace weft::cli;

namespace {

const OpBytes& of(const StepBytes& bytes, const std::string& phase, const std::string& op) {
  for (const OpBytes& row : bytes.ops) {
    if (row.phase == phase && row.op == op) return row;
  }
  throw Error("no row " + phase + " " + op);
}

}  // namespace

TEST_CASE("a bf16 step moves at most 1.3 times the least that its ops could, whatever the batch") {
  for (const std::string model : {"vit_lite", "cct"}) {
    CAPTURE(model);
    const auto of_batch = [&](int64_t batch) {
      return count_bytes({.model = model, .precision = "bf16", .batch = batch});
    };
    const StepBytes small = of_batch(8), large = of_batch(16);
    for (const StepBytes& bytes : {small, large}) {
      CHECK(bytes.least > 0);
      CHECK(bytes.ratio() >= 1);
      CHECK(bytes.ratio() <= 1.3);
    }
    // Of each image more: what the ratio tends to.
    CHECK(static_cast<double>(large.moved - small.moved) /
              static_cast<double>(large.least - small.least) <=
          1.3);
  }
  CHECK(count_bytes({.model = "vit_b_16", .precision = "bf16", .batch = 256}).ratio() <= 1.3);
}

TEST_CASE("the optimizer moves 28 bytes a parameter, in one kernel") {
  const StepOptions options{.model = "vit_lite", .batch = 2};
  const StepBytes bytes = count_bytes(options);
  const OpBytes& adam = of(bytes, "update", "adam");
  CHECK(adam.moved == 28 * TrainingStep(options).model().num_parameters());
  CHECK(adam.least == adam.moved);
}

TEST_CASE(
    "in bf16 each weight of a product is cast once, as a CPU's optimizer leaves that to the step") {
  const StepOptions options{.model = "vit_lite", .precision = "bf16", .batch = 2};
  const StepBytes bytes = count_bytes(options);
  const TrainingStep step(options);
  CHECK(of(bytes, "update", "adam").moved == 28 * step.model().num_parameters());
  // The cast and the product.
  const OpBytes& linear = of(bytes, "forward", "linear");
  CHECK(linear.kernels == 2 * linear.calls);
  const OpBytes& mlp = of(bytes, "forward", "mlp");
  CHECK(mlp.kernels == 4 * mlp.calls);
}

TEST_CASE(
    "bytes beside products grow with the batch, and with it alone where weights have no part") {
  const auto beside = [](int64_t batch) {
    return count_bytes({.model = "vit_lite", .batch = batch}).beside_products;
  };
  const int64_t two = beside(2), four = beside(4), eight = beside(8);
  CHECK(four > two);
  CHECK(eight - four == 2 * (four - two));
}
