// Both programs are run, and train the same model.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "io/safetensors.h"
#include "tests/program/run_weft.h"

using namespace weft;
using weft::cli::Outcome;

namespace {

Outcome run_example(const std::string& name, const std::string& arguments) {
  const std::string program = std::filesystem::exists("examples/" + name)
                                  ? "examples/" + name
                                  : "bazel-bin/examples/" + name;
  return cli::run_shell("GOMP_SPINCOUNT=0 timeout 60 " + program + " " + arguments);
}

double distance(const std::string& a, const std::string& b) {
  const auto x = io::read_safetensors(a).tensors, y = io::read_safetensors(b).tensors;
  REQUIRE(x.size() == y.size());
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    REQUIRE(x[i].first == y[i].first);
    const auto u = x[i].second.to_vector(), v = y[i].second.to_vector();
    for (size_t j = 0; j < u.size(); ++j) largest = std::max(largest, std::abs(u[j] - v[j]));
  }
  return largest;
}

}  // namespace

TEST_CASE("the plain loop and its scaled versions train the same model") {
  const std::string plain = cli::scratch("plain.safetensors");
  const Outcome first = run_example("plain_training", plain);
  INFO(first.err);
  REQUIRE(first.code == 0);
  for (const std::string how : {"1", "2", "2 fsdp", "4 zero1", "2 tp", "2 pipeline", "4 dp"}) {
    const std::string scaled = cli::scratch("scaled.safetensors");
    const Outcome outcome = run_example("scaled_training", scaled + " " + how);
    INFO(how << "\n" << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 10);
    // Ten steps of Adam carry roundings of the sums at most as far as its steps of 1e-3 allow; a
    // rank left out would move weights by whole steps.
    CHECK(distance(plain, scaled) < 2e-4);
  }
}
