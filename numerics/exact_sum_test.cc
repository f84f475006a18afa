#include "numerics/exact_sum.h"

#include <mpfr.h>

#include <array>
#include <bit>
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

/// Finite terms; to nearest even, or to odd: cut, and the last bit set if anything was cut off.
double mpfr_exact_sum(const std::vector<double>& terms, bool to_odd = false) {
  std::vector<mpfr_t> storage(terms.size());
  std::vector<mpfr_ptr> pointers;
  for (size_t i = 0; i < terms.size(); ++i) {
    mpfr_init2(storage[i], 53);
    mpfr_set_d(storage[i], terms[i], MPFR_RNDN);
    pointers.push_back(storage[i]);
  }
  mpfr_t result;
  mpfr_init2(result, 53);
  const mpfr_rnd_t rounding = to_odd ? MPFR_RNDZ : MPFR_RNDN;
  const int cut = mpfr_sum(result, pointers.data(), pointers.size(), rounding);
  double value = mpfr_get_d(result, MPFR_RNDN);
  if (to_odd && cut != 0) value = std::bit_cast<double>(std::bit_cast<uint64_t>(value) | 1);
  mpfr_clear(result);
  for (auto& x : storage) mpfr_clear(x);
  return value;
}

/// Terms of exponents up to `spread`. Now and then one cancels what is there: all but the last bits
/// go.
std::vector<double> random_terms(Philox& random, int spread) {
  std::vector<double> terms(1 + random.below(40));
  for (double& x : terms) {
    const int exponent = static_cast<int>(random.below(2 * spread)) - spread;
    x = std::ldexp(random.normal(), exponent);
    if (random.below(4) == 0) x = -terms[random.below(terms.size())];
  }
  return terms;
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
  // Scaled down, they reach 2^-1074, the least there is.
  for (double scale : {1.0, 0x1p-1040}) {
    for (int spread : {1, 40, 400, 900}) {
      for (int i = 0; i < 300; ++i) {
        std::vector<double> terms = random_terms(random, spread);
        for (double& x : terms) x *= scale;
        ExactSum sum;
        for (double x : terms) sum.add(x);
        INFO("scale " << scale << ", spread " << spread << ", case " << i);
        CHECK(sum.value() == mpfr_exact_sum(terms));
        CHECK(sum.value_to_odd() == mpfr_exact_sum(terms, true));
      }
    }
  }
}

TEST_CASE("A sum put together from parts in any order is the sum of the terms") {
  Philox random(2);
  for (int i = 0; i < 200; ++i) {
    const std::vector<double> terms = random_terms(random, 900);
    ExactSum parts[3];
    for (double x : terms) parts[random.below(3)].add(x);
    ExactSum merged = parts[2];
    merged.add(parts[0]);
    merged.add(parts[1]);
    merged.add(ExactSum());
    CHECK(merged.value() == mpfr_exact_sum(terms));
    // As a collective adds them.
    std::array<int64_t, ExactSum::kWords> words{};
    for (const ExactSum& part : parts) {
      for (int k = 0; k < ExactSum::kWords; ++k) words[k] += part.words()[k];
    }
    ExactSum collected(words);
    CHECK(collected.value() == mpfr_exact_sum(terms));
    // With every term's negative only what was added last remains.
    for (double x : terms) collected.add(-x);
    collected.add(3.25);
    CHECK(collected.value() == 3.25);
  }
}

TEST_CASE("NaN and infinities are as IEEE addition has them, merged or not") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const double some[] = {1.5, -1e300, inf, -inf, nan};
  for (double a : some) {
    for (double b : some) {
      ExactSum other;
      other.add(b);
      ExactSum merged;
      merged.add(a);
      merged.add(other);
      for (double sum : {exact_sum({a, b}), merged.value(), ExactSum(merged.words()).value()}) {
        INFO(a << " + " << b);
        CHECK((sum == a + b || (std::isnan(sum) && std::isnan(a + b))));
      }
    }
  }
}

TEST_CASE("Rounded to odd, a sum rounds to narrower formats as if it were exact") {
  ExactSum tie;  // half way between 1 and 1 + 2^-23, and a breath more
  tie.add(1);
  tie.add(0x1p-24);
  CHECK(static_cast<float>(tie.value_to_odd()) == 1);
  tie.add(0x1p-280);
  CHECK(tie.value() == 1 + 0x1p-24);
  CHECK(static_cast<float>(tie.value_to_odd()) == 1 + 0x1p-23);
  CHECK(ExactSum().value_to_odd() == 0);
  ExactSum cancels;
  for (double x : {0x1p250, 0x1p-298, -0x1p250}) cancels.add(x);
  CHECK(cancels.value_to_odd() == 0x1p-298);
}
