// The tape against a slow interpreter, on random programs of views, in-place ops, NoGrad and
// detach.
//
// A program either gives the interpreter's values and gradients or is refused for one of the
// reasons below; what the interpreter says must be refused is. WEFT_VIEW_PROGRAMS says how many
// programs to try, WEFT_VIEW_PROGRAMS_SEED the seed of the first.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "autograd/testing/view_programs.h"

namespace weft {
namespace {

using namespace view_programs;

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::stoull(text) : otherwise;
}

double largest(const std::vector<double>& values) {
  double most = 1;
  for (double value : values) most = std::max(most, std::abs(value));
  return most;
}

/// Some twenty f64 operations, whose intermediate results may be larger than what comes out.
bool agree(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  const double most = 1e-11 * std::max(largest(a), largest(b));
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= most)) return false;
  }
  return true;
}

TEST_CASE("random programs agree with a slow interpreter or are refused by name") {
  const uint64_t first = setting("WEFT_VIEW_PROGRAMS_SEED", 1),
                 count = setting("WEFT_VIEW_PROGRAMS", 20000);
  std::map<std::string, double> refused;  // shares
  double differentiated = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed);
    const Outcome expected = interpret(program), outcome = run(program);
    INFO("seed " << seed << "\n" << python_source(program));
    if (!outcome.refusal.empty()) {
      INFO("refused: " << outcome.refusal);
      const std::string kind = refusal_kind(outcome.refusal);
      REQUIRE(kind != "");
      refused[kind] += 1.0 / static_cast<double>(count);
      continue;
    }
    INFO("to be refused: " << expected.refusal);
    REQUIRE(expected.refusal == "");
    REQUIRE(outcome.values.size() == expected.values.size());
    for (size_t i = 0; i < outcome.values.size(); ++i) {
      INFO("v" << i);
      if (!agree(outcome.values[i], expected.values[i])) {
        REQUIRE(outcome.values[i] == expected.values[i]);
      }
    }
    if (!agree(outcome.gradients, expected.gradients)) {
      REQUIRE(outcome.gradients == expected.gradients);
    }
    if (largest(expected.gradients) > 1) differentiated += 1.0 / static_cast<double>(count);
  }
  // Every kind of refusal occurs, and none is the easy way out: about 12% of the programs are
  // refused, most of them where the target is a leaf, and 66% have a gradient.
  double all = 0;
  for (const std::string& kind : kRefusalKinds) {
    INFO("refused because something " << kind);
    CHECK(refused[kind] <= 0.08);
    if (count >= 20000) CHECK(refused[kind] > 0);
    all += refused[kind];
  }
  CHECK(all <= 0.2);
  CHECK(differentiated >= 0.6);
  std::printf("%llu programs from seed %llu: %.1f%% with a gradient, %.1f%% refused\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
              100 * differentiated, 100 * all);
}

}  // namespace
}  // namespace weft
