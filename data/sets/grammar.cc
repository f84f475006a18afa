#include "data/sets/grammar.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "data/random.h"

namespace weft::data {
namespace {

using PerLetter = std::array<double, 26>;

std::string described(char symbol) {
  return symbol >= ' ' && symbol <= '~' ? fmt::format("'{}'", symbol)
                                        : fmt::format("byte {}", static_cast<uint8_t>(symbol));
}

/// A number in [0, 1) of 53 bits.
double uniform53(Philox& random) { return static_cast<double>(random.next_u64() >> 11) * 0x1p-53; }

}  // namespace

Grammar::Grammar(const std::vector<Rule>& rules) {
  for (const Rule& r : rules) {
    WEFT_CHECK(is_letter(r.letter), "Grammar: a rule for {}, expected a letter from A to Z",
               described(r.letter));
    WEFT_CHECK(rule(r.letter).empty(), "Grammar: two rules for {}", described(r.letter));
    WEFT_CHECK(!r.alternatives.empty(), "Grammar: the rule for {} has no alternatives",
               described(r.letter));
    rule(r.letter) = r.alternatives;
  }
  check();
  measure();
}

void Grammar::check() const {
  WEFT_CHECK(!rule('S').empty(), "Grammar: no rule for 'S', which sentences grow from");
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    std::unordered_set<char> beginnings;
    double sum = 0;
    for (const auto& [probability, symbols] : rule(letter)) {
      WEFT_CHECK(probability > 0 && probability <= 1,
                 "Grammar: {} has an alternative of probability {}", described(letter),
                 probability);
      sum += probability;
      WEFT_CHECK(!symbols.empty() && !is_letter(symbols[0]),
                 "Grammar: {} has the alternative \"{}\", expected one that begins with a byte",
                 described(letter), symbols);
      WEFT_CHECK(beginnings.insert(symbols[0]).second,
                 "Grammar: two alternatives of {} begin with {}", described(letter),
                 described(symbols[0]));
      for (const char symbol : symbols) {
        WEFT_CHECK(!is_letter(symbol) || !rule(symbol).empty(),
                   "Grammar: no rule for {}, which is in {}", described(symbol), described(letter));
      }
    }
    constexpr double kRounding = 1e-12;
    WEFT_CHECK(rule(letter).empty() || std::abs(sum - 1) < kRounding,
               "Grammar: the probabilities of {} have the sum {}, expected 1", described(letter),
               sum);
  }
}

void Grammar::measure() {
  // Solves x(X) = sum_a p_a (own(a, X) + sum x(Y)) by iteration: x after n steps is that of the
  // derivations of at most n levels.
  const auto solve = [&](const auto& own) {
    constexpr int kMostSteps = 10'000;
    PerLetter x{};
    for (int step = 0; step < kMostSteps; ++step) {
      PerLetter next{};
      for (char letter = 'A'; letter <= 'Z'; ++letter) {
        for (const Alternative& a : rule(letter)) {
          double sum = own(a);
          for (const char symbol : a.symbols) {
            if (is_letter(symbol)) sum += x[symbol - 'A'];
          }
          next[letter - 'A'] += a.probability * sum;
        }
      }
      double change = 0, size = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        change = std::max(change, std::abs(next[i] - x[i]));
        size = std::max(size, std::abs(next[i]));
      }
      x = next;
      if (std::isfinite(size) && change <= 0x1p-52 * size) return x;
    }
    WEFT_FAIL("Grammar: sentences have no finite mean length");
  };
  const auto bytes_in = [](const Alternative& a) {
    return static_cast<double>(
        std::ranges::count_if(a.symbols, [](char symbol) { return !is_letter(symbol); }));
  };
  mean_length_ = solve(bytes_in)['S' - 'A'];
  entropy_ = solve([](const Alternative& a) { return -std::log(a.probability); })['S' - 'A'] /
             mean_length_;
  const auto excess = [&](const Alternative& a) {
    return -std::log(a.probability) - entropy_ * bytes_in(a);
  };
  const PerLetter mean = solve(excess);
  PerLetter own_variance{};  // sum_a p_a (w_a + sum M(Y))^2 - M(X)^2 of each letter
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    for (const Alternative& a : rule(letter)) {
      double sum = excess(a);
      for (const char symbol : a.symbols) {
        if (is_letter(symbol)) sum += mean[symbol - 'A'];
      }
      own_variance[letter - 'A'] += a.probability * sum * sum;
    }
    own_variance[letter - 'A'] -= mean[letter - 'A'] * mean[letter - 'A'];
  }
  const auto of_letters = [&](const Alternative& a) {
    double sum = 0;
    for (const char symbol : a.symbols) {
      if (is_letter(symbol)) sum += own_variance[symbol - 'A'];
    }
    return sum;
  };
  variance_ = own_variance['S' - 'A'] + solve(of_letters)['S' - 'A'];
}

double Grammar::deviation(int64_t bytes) const {
  return std::sqrt(variance_ / (mean_length_ * static_cast<double>(bytes)));
}

Bytes Grammar::text(int64_t bytes, uint64_t seed) const {
  Bytes result;
  std::string stack;  // what is still to come, the next symbol last
  for (int64_t sentence = 0; static_cast<int64_t>(result.size()) < bytes; ++sentence) {
    Philox random = random_stream(seed, Purpose::kGrammar, 0, sentence);
    stack.assign(1, 'S');
    while (!stack.empty()) {
      const char symbol = stack.back();
      stack.pop_back();
      if (!is_letter(symbol)) {
        result.push_back(static_cast<uint8_t>(symbol));
        continue;
      }
      const Alternatives& alternatives = rule(symbol);
      double u = uniform53(random);
      size_t i = 0;
      while (i + 1 < alternatives.size() && u >= alternatives[i].probability) {
        u -= alternatives[i++].probability;
      }
      stack.append(alternatives[i].symbols.rbegin(), alternatives[i].symbols.rend());
    }
  }
  result.resize(bytes);
  return result;
}

std::vector<double> Grammar::information(const Bytes& text) const {
  std::vector<double> result;
  std::string stack;
  for (const uint8_t byte : text) {
    if (stack.empty()) stack.assign(1, 'S');
    const char symbol = stack.back(), next = static_cast<char>(byte);
    stack.pop_back();
    if (!is_letter(symbol)) {
      WEFT_CHECK(symbol == next, "Grammar: {} at byte {}, expected {}", described(next),
                 result.size(), described(symbol));
      result.push_back(0);
      continue;
    }
    const auto found = std::ranges::find_if(
        rule(symbol), [&](const Alternative& a) { return a.symbols[0] == next; });
    WEFT_CHECK(found != rule(symbol).end(), "Grammar: {} at byte {}, where {} begins",
               described(next), result.size(), described(symbol));
    result.push_back(-std::log(found->probability));
    stack.append(found->symbols.rbegin(), found->symbols.rend() - 1);
  }
  return result;
}

const Grammar& Grammar::tales() {
  static const Grammar grammar({
      {'S', {{0.6, "the NBthe NE"}, {0.3, "every NBevery NE"}, {0.1, "one NBone NE"}}},
      {'N',
       {{0.25, "cat"}, {0.2, "dog"}, {0.15, "fox"}, {0.1, "hen"}, {0.2, "red N"}, {0.1, "old N"}}},
      {'B', {{0.8, " V"}, {0.2, ", who Vthe NR V"}}},
      {'R', {{0.8, ","}, {0.2, " (who Vthe NP,"}}},
      {'P', {{0.7, ")"}, {0.3, " (who Vthe NP)"}}},
      {'V', {{0.4, "sees "}, {0.3, "hears "}, {0.2, "likes "}, {0.1, "fears "}}},
      {'E', {{0.6, ".\n"}, {0.3, ", S"}, {0.1, " and S"}}},
  });
  return grammar;
}

}  // namespace weft::data
