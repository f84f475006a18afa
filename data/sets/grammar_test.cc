#include "data/sets/grammar.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

namespace weft::data {
namespace {

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

std::string string_of(const Bytes& text) { return {text.begin(), text.end()}; }

TEST_CASE("entropy and deviation are those found by hand") {
  // "ab" or "c", ln 2 each, in 1.5 bytes; W is ln 2 - 2 h or ln 2 - h: half of h from their mean.
  const Grammar two({{'S', {{0.5, "ab"}, {0.5, "c"}}}});
  const double h = std::log(2.0) / 1.5;
  CHECK(two.mean_length() == Approx(1.5).epsilon(1e-14));
  CHECK(two.entropy() == Approx(h).epsilon(1e-14));
  CHECK(two.deviation(600) == Approx(h / 2 / std::sqrt(1.5 * 600)).epsilon(1e-13));
  // Each byte is a b of probability q or an a that ends a sentence: bytes are independent.
  const double q = 0.3, p = 1 - q;
  const Grammar coin({{'S', {{q, "bS"}, {p, "a"}}}});
  const double entropy = -q * std::log(q) - p * std::log(p);
  const double variance = q * std::pow(std::log(q) + entropy, 2) +  //
                          p * std::pow(std::log(p) + entropy, 2);
  CHECK(coin.mean_length() == Approx(1 / p).epsilon(1e-13));
  CHECK(coin.entropy() == Approx(entropy).epsilon(1e-13));
  CHECK(coin.deviation(100) == Approx(std::sqrt(variance / 100)).epsilon(1e-12));
  // Two letters, one of them twice, brackets around a third of them.
  const Grammar nested({{'S', {{1, "<AA>"}}}, {'A', {{2.0 / 3, "x"}, {1.0 / 3, "(A)"}}}});
  const double of_a = (std::log(1.5) * 2 / 3 + std::log(3.0) / 3) / (1 - 1.0 / 3);
  const double bytes_of_a = (2.0 / 3 + 2.0 / 3) / (1 - 1.0 / 3);
  CHECK(nested.entropy() == Approx(2 * of_a / (2 + 2 * bytes_of_a)).epsilon(1e-13));
}

TEST_CASE("the information of its own texts is the entropy, as far as chance allows") {
  const Grammar& grammar = Grammar::tales();
  constexpr int64_t kBytes = 20'000;
  constexpr int kTexts = 100;
  double squares = 0;
  for (int seed = 0; seed < kTexts; ++seed) {
    const Bytes text = grammar.text(kBytes, seed);
    const double off = mean(grammar.information(text)) - grammar.entropy();
    const double deviations = off / grammar.deviation(kBytes);
    // Hundreds of sentences: normal, so that five deviations are exceeded once in two million.
    CHECK(std::abs(deviations) < 5);
    squares += deviations * deviations;
  }
  // Chi-squared of 100 degrees: mean 100, deviation sqrt(200); five of those.
  CHECK(std::abs(squares - kTexts) < 5 * std::sqrt(2.0 * kTexts));
  CHECK(grammar.entropy() > 0.2);
  CHECK(grammar.entropy() < 0.4);
}

TEST_CASE("a longer text of a seed begins with the shorter one") {
  const Grammar& grammar = Grammar::tales();
  const std::string text = string_of(grammar.text(3000, 1));
  CHECK(string_of(grammar.text(1000, 1)) == text.substr(0, 1000));
  CHECK(string_of(grammar.text(1000, 2)) != text.substr(0, 1000));
  CHECK(text.find("\nthe ") != std::string::npos);
  CHECK(text.find(" (who ") != std::string::npos);
  CHECK(text.find("))") != std::string::npos);
  CHECK(grammar.text(0, 1).empty());
}

TEST_CASE("what the grammar does not allow is named by its place") {
  const Grammar& grammar = Grammar::tales();
  const auto read = [&](const std::string& text) {
    return grammar.information(Bytes(text.begin(), text.end()));
  };
  const std::vector<double> information = read("every cat");
  CHECK(information[0] == -std::log(0.3));
  CHECK(information[1] == 0);
  CHECK(information[6] == -std::log(0.25));
  CHECK_THROWS_WITH(read("the cow"), "Grammar: 'o' at byte 5, expected 'a'");
  CHECK_THROWS_WITH(read("the cat sees every"), "Grammar: 'e' at byte 13, expected 't'");
  CHECK_THROWS_WITH(read("the bat"), "Grammar: 'b' at byte 4, where 'N' begins");
  CHECK_THROWS_WITH(read("\n"), "Grammar: byte 10 at byte 0, where 'S' begins");
}

TEST_CASE("rules that make no such grammar are named") {
  const auto refuses = [](const std::vector<Rule>& rules, const std::string& message) {
    CHECK_THROWS_WITH(Grammar(rules), "Grammar: " + message);
  };
  refuses({}, "no rule for 'S', which sentences grow from");
  refuses({{'s', {{1, "a"}}}}, "a rule for 's', expected a letter from A to Z");
  refuses({{'S', {{1, "a"}}}, {'S', {{1, "b"}}}}, "two rules for 'S'");
  refuses({{'S', {}}}, "the rule for 'S' has no alternatives");
  refuses({{'S', {{1, "aT"}}}}, "no rule for 'T', which is in 'S'");
  refuses({{'S', {{0.5, "a"}, {0.4, "b"}}}},
          "the probabilities of 'S' have the sum 0.9, expected 1");
  refuses({{'S', {{1, "a"}, {0, "b"}}}}, "'S' has an alternative of probability 0");
  refuses({{'S', {{1, "S"}}}},
          "'S' has the alternative \"S\", expected one that begins with a byte");
  refuses({{'S', {{1, ""}}}}, "'S' has the alternative \"\", expected one that begins with a byte");
  refuses({{'S', {{0.5, "ab"}, {0.5, "ac"}}}}, "two alternatives of 'S' begin with 'a'");
  refuses({{'S', {{0.5, "aSS"}, {0.5, "b"}}}}, "sentences have no finite mean length");
  refuses({{'S', {{0.9, "aSS"}, {0.1, "b"}}}}, "sentences have no finite mean length");
}

}  // namespace
}  // namespace weft::data
