#include "numerics/exact_sum.h"

#include <mpfr.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/philox.h"

using namespace weft;
using namespace weft::numerics;

namespace {

double exact_sum(const std::vector<double>& terms) {
  ExactSum sum;
  for (double x : terms) sum.add(x);
  return sum.value();
}

double mpfr_exact_sum(const std::vector<double>& terms) {
  std::vector<mpfr_t> storage(terms.size());
  std::vector<mpfr_ptr> pointers;
  for (size_t i = 0; i < terms.size(); ++i) {
    mpfr_init2(storage[i], 53);
    mpfr_set_d(storage[i], terms[i], MPFR_RNDN);
    pointers.push_back(storage[i]);
  }
  mpfr_t result;
  mpfr_init2(result, 53);
  mpfr_sum(result, pointers.data(), pointers.size(), MPFR_RNDN);
  const double value = mpfr_get_d(result, MPFR_RNDN);
  mpfr_clear(result);
  for (auto& x : storage) mpfr_clear(x);
  return value;
}

}  // namespace

TEST_CASE("A sum is rounded once") {
  CHECK(exact_sum({}) == 0);
  CHECK(exact_sum({0.1}) == 0.1);
  CHECK(exact_sum({-0.1, 0.1}) == 0);
  CHECK(exact_sum({1e308, 1, -1e308}) == 1);
  CHECK(exact_sum({1, 0x1p-53}) == 1);                       // a tie, to even
  CHECK(exact_sum({1, 0x1p-53, 0x1p-1074}) == 1 + 0x1p-52);  // past the tie by the least there is
  CHECK(exact_sum({1, 0x1p-53, -0x1p-1074}) == 1);
  CHECK(exact_sum({1 + 0x1p-52, 0x1p-53}) == 1 + 0x1p-51);
  CHECK(exact_sum({-1, -0x1p-53, -0x1p-200}) == -1 - 0x1p-52);
  CHECK(exact_sum({0x1p-1074, 0x1p-1074}) == 0x1p-1073);
  CHECK(exact_sum({0x1.8p-1022, -0x1p-1022}) == 0x1p-1023);
  const double largest = std::numeric_limits<double>::max();
  CHECK(exact_sum({largest, largest, -largest}) == largest);
  CHECK(exact_sum({largest, largest}) == HUGE_VAL);
}

TEST_CASE("Sums equal MPFR's correctly rounded ones") {
  Philox random(1);
  for (int spread : {1, 40, 400, 900}) {
    for (int i = 0; i < 300; ++i) {
      std::vector<double> terms(1 + random.below(40));
      for (double& x : terms) {
        const int exponent = static_cast<int>(random.below(2 * spread)) - spread;
        x = std::ldexp(random.normal(), exponent);
        // Cancel what is there, now and then: all but the last bits go.
        if (random.below(4) == 0) x = -terms[random.below(terms.size())];
      }
      INFO("spread " << spread << ", case " << i);
      CHECK(exact_sum(terms) == mpfr_exact_sum(terms));
    }
  }
}
