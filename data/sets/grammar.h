// Text from a probabilistic context-free grammar whose entropy is known: what a language model's
// loss can come down to, and not below.
//
//   const Grammar& grammar = Grammar::tales();
//   Bytes text = grammar.text(100'000, seed);
//   grammar.entropy();          // nats per byte
//   grammar.information(text);  // of each byte, to whoever knows the grammar
//
// A rule replaces a capital letter by one of its alternatives, drawn with their probabilities; all
// other bytes stand for themselves. A text is sentences, each grown from 'S', one after the other.
//
// Each alternative begins with a byte that no other of its rule begins with. So a reader who knows
// the grammar needs no memory but the stack of what is still to come: on its top stands either a
// byte, which then comes with certainty, or a letter, whose next byte tells the alternative. A text
// has one derivation, and its probability is the product of those of its alternatives.
//
// Entropy. For a letter X with alternatives a of probability p_a, by the chain rule and because
// letters are replaced independently of each other (Grenander, "Syntax-Controlled Probabilities",
// 1967):
//
//   H(X) = sum_a p_a (-ln p_a + sum of H(Y) over the letters Y in a)
//   L(X) = sum_a p_a (bytes in a + sum of L(Y) over the letters Y in a)
//
// are the entropy and the mean length of what X becomes. Sentences are independent, and end where
// their stack is empty: a text can be cut into them again. So the law of large numbers for its
// first n sentences, n H(S) of information in n L(S) bytes, gives the entropy rate H(S) / L(S).
//
// Spread. The information of a text less its expectation, sum over sentences of
// W = information - entropy * bytes, has the mean 0. The variance V(S) of one W follows in the same
// way: with w_a = -ln p_a - entropy * bytes in a, and M(X) the mean of W over X,
//
//   V(X) = sum_a p_a ((w_a + sum M(Y))^2 + sum V(Y)) - M(X)^2
//
// and the mean information of B bytes has the standard deviation sqrt(V(S) / (L(S) B)), but for
// the part of the last sentence.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "data/sets/text.h"

namespace weft::data {

struct Alternative {
  double probability;
  std::string symbols;
};

struct Rule {
  char letter;  // A to Z
  std::vector<Alternative> alternatives;
};

class Grammar {
 public:
  /// Throws Error naming the rule for two rules of a letter, letters without a rule, probabilities
  /// that are not positive or whose sum is not 1, alternatives that begin with a letter or with the
  /// byte of another, no rule for 'S', and sentences whose mean length is not finite.
  explicit Grammar(const std::vector<Rule>& rules);

  /// "the red cat, who likes the hen (who sees the fox), hears the dog, every fox fears every
  /// cat.": brackets nest, and both articles of a clause are one word, so that a model has to look
  /// back.
  static const Grammar& tales();

  double entropy() const { return entropy_; }          // nats per byte
  double mean_length() const { return mean_length_; }  // bytes of a sentence
  /// Of the mean information per byte of a text of so many bytes.
  double deviation(int64_t bytes) const;

  /// The first bytes of the text of a seed. Sentence i depends on (seed, i) alone.
  Bytes text(int64_t bytes, uint64_t seed) const;
  /// -ln of each byte's probability after those before it, of a text that begins with a sentence;
  /// its last one may be cut off. Throws Error naming the first byte that the grammar does not
  /// allow.
  std::vector<double> information(const Bytes& text) const;

 private:
  using Alternatives = std::vector<Alternative>;

  static bool is_letter(char symbol) { return symbol >= 'A' && symbol <= 'Z'; }
  const Alternatives& rule(char letter) const { return rules_[letter - 'A']; }
  Alternatives& rule(char letter) { return rules_[letter - 'A']; }
  void check() const;
  void measure();

  std::array<Alternatives, 26> rules_;
  double entropy_ = 0, mean_length_ = 0, variance_ = 0;
};

}  // namespace weft::data
