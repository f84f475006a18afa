// weft.data's texts: bytes, and windows of them as tensors.
#include <nanobind/stl/shared_ptr.h>

#include "data/sets/grammar.h"
#include "data/sets/open_text.h"
#include "data/tensors/text_windows.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/docstrings.h"
#include "python/iteration.h"

namespace weft::python {
namespace {

using data::Bytes;
using data::Grammar;
using data::RandomWindowLoader;
using data::WindowDataset;
using data::Windows;

Bytes text_of(const nb::bytes& text) {
  const auto* const first = static_cast<const uint8_t*>(text.data());
  return {first, first + text.size()};
}

nb::bytes object_of(const Bytes& text) { return nb::bytes(text.data(), text.size()); }

/// Something of C++ that refers to a text, with that text.
template <class T, class... Arguments>
std::shared_ptr<T> on_text_of_its_own(const nb::bytes& text, const Arguments&... arguments) {
  struct Both {
    Both(Bytes bytes, const Arguments&... rest) : text(std::move(bytes)), reader(text, rest...) {}
    const Bytes text;
    T reader;
  };
  const auto both = std::make_shared<Both>(text_of(text), arguments...);
  return {both, &both->reader};
}

/// {"S": [(0.5, "a"), (0.5, "bS")]}
std::vector<data::Rule> rules_of(const nb::dict& rules) {
  std::vector<data::Rule> all;
  for (const auto& [letter, alternatives] : rules) {
    const auto name = nb::cast<std::string>(letter);
    WEFT_CHECK(name.size() == 1, "Grammar: a rule is of one letter, got \"{}\"", name);
    data::Rule rule = {name[0], {}};
    for (auto& [probability, symbols] :
         nb::cast<std::vector<std::pair<double, std::string>>>(alternatives)) {
      rule.alternatives.push_back({probability, std::move(symbols)});
    }
    all.push_back(std::move(rule));
  }
  return all;
}

void bind_grammar(nb::module_& m) {
  nb::class_<Grammar>(
      m, "Grammar",
      "Text from a probabilistic context-free grammar whose entropy is known: what a language "
      "model's loss can come down to, and not below.\n\nrules: {\"S\": [(0.25, \"aSb\"), (0.75, "
      "\"c\")]}: a letter A to Z is replaced by one of its alternatives, drawn with their "
      "probabilities; all other bytes stand for themselves. A text is sentences, each grown from "
      "S. Throws Error naming the rule for letters without one, probabilities that are not "
      "positive or whose sum is not 1, alternatives that begin with a letter or with the byte of "
      "another, no rule for S, and sentences whose mean length is not finite.\n\n"
      "Grenander, \"Syntax-Controlled Probabilities\", 1967.")
      .def(
          "__init__",
          [](Grammar* self, const nb::dict& rules) { new (self) Grammar(rules_of(rules)); },
          "rules"_a)
      .def_static("tales", &Grammar::tales, nb::rv_policy::reference, docs("data::Grammar::tales"))
      .def_prop_ro("entropy", &Grammar::entropy, "Nats per byte.")
      .def_prop_ro("mean_length", &Grammar::mean_length, "Bytes of a sentence.")
      .def("deviation", &Grammar::deviation, "bytes"_a,
           "The standard deviation of the mean information() per byte of a text of so many bytes.")
      .def(
          "text",
          [](const Grammar& self, int64_t bytes, uint64_t seed) {
            return object_of(self.text(bytes, seed));
          },
          "bytes"_a, "seed"_a, docs("data::Grammar::text"))
      .def(
          "information",
          [](const Grammar& self, const nb::bytes& text) {
            return Tensor::from(self.information(text_of(text)),
                                {static_cast<int64_t>(text.size())});
          },
          "text"_a,
          "float64 [bytes]: -ln of each byte's probability after those before it, of a text that "
          "begins with a sentence; its last one may be cut off. Throws Error naming the first byte "
          "that the grammar does not allow.");
}

void bind_windows(nb::module_& m) {
  nb::class_<RandomWindowLoader> loader(
      m, "RandomWindowLoader",
      "Windows of a text at random places, as batches (tokens, targets), int64 [batch_size, "
      "length] each: a token is a byte, its target the one that follows it. They depend on (the "
      "text's size, options, epoch, index) alone. An epoch has as many batches as the text has "
      "bytes for; iterating once is one epoch, from `position` on where that was set, and the next "
      "iteration is the next epoch. Throws Error for a text of fewer than length + 1 bytes.");
  loader
      .def(nb::new_([](const nb::bytes& text, int64_t batch_size, int64_t length, uint64_t seed) {
             return on_text_of_its_own<RandomWindowLoader>(
                 text, data::RandomWindows{.batch = batch_size, .length = length, .seed = seed});
           }),
           "text"_a, nb::kw_only(), "batch_size"_a, "length"_a, "seed"_a = 0)
      .def("__len__", &RandomWindowLoader::batches)
      .def(
          "set_epoch", [](RandomWindowLoader& self, int64_t epoch) { self.seek({.epoch = epoch}); },
          "epoch"_a, "The next iteration is that epoch.");
  define_iteration(m, "RandomWindowLoaderIterator", loader, &tuple_of);
  define_position(loader);

  nb::class_<WindowDataset, data::TensorDataset>(
      m, "WindowDataset",
      "Windows of one text that are all alike, (tokens, targets) int64 [length] each: each counts "
      "the second half of its targets, the others are -100, cross_entropy's ignore_index; each "
      "byte of the text is one of these once, but for those at its beginning and end that no whole "
      "window counts. So the mean over windows is that over bytes. Throws Error for a text of "
      "fewer than length + 1 bytes, and an odd length.")
      .def(nb::new_([](const nb::bytes& text, int64_t length) {
             return on_text_of_its_own<WindowDataset>(text, length);
           }),
           "text"_a, "length"_a)
      .def_prop_ro("counted_bytes", &WindowDataset::counted_bytes, "Targets that count.");

  nb::class_<Windows>(
      m, "Windows",
      "All of a text in windows of `length` tokens, each `stride` behind the one before it, by "
      "default side by side, the last one where the text ends: (tokens, targets) int64 [length] "
      "each. Every byte but the first is a target once: where windows overlap, in the first that "
      "reaches it; elsewhere the target is -100, cross_entropy's ignore_index. Throws Error unless "
      "0 < stride <= length < the text's bytes.")
      .def(nb::new_([](const nb::bytes& text, int64_t length, std::optional<int64_t> stride) {
             return on_text_of_its_own<Windows>(text, length, stride.value_or(length));
           }),
           "text"_a, "length"_a, "stride"_a = nb::none())
      .def("__len__", &Windows::size)
      .def("__getitem__",
           [](const Windows& self, int64_t i) {
             i = place_of("window", i, self.size());
             const data::TokenBatch batch = self.batch(i, i + 1);
             return std::pair(ops::select(batch.tokens, 0, 0), ops::select(batch.targets, 0, 0));
           })
      .def(
          "batch",
          [](const Windows& self, int64_t begin, int64_t end) {
            const data::TokenBatch batch = self.batch(begin, end);
            return std::pair(batch.tokens, batch.targets);
          },
          "begin"_a, "end"_a, "(tokens, targets) int64 [end - begin, length] of those windows.");
}

}  // namespace

void bind_text(nb::module_& m) {
  bind_grammar(m);
  m.def(
      "open_text",
      [](const std::string& spec, int64_t length) {
        const data::TextSplits splits = data::open_text(spec, length);
        return std::tuple(object_of(splits.train), object_of(splits.validation),
                          object_of(splits.test), splits.entropy);
      },
      "spec"_a, "length"_a,
      "(train, validation, test, entropy) for a model that sees `length` bytes: 90%, 5% and 5% of "
      "a text, in this order, as bytes, and nats a byte where they are known, else None. spec: "
      "grammar, sentences of Grammar.tales(); text:FILE, or a FILE that ends in .txt. Throws Error "
      "naming the file that cannot be read, or that is too short to test such a model on a "
      "twentieth of it.");
  m.def(
      "split_text",
      [](const nb::bytes& text, double share) {
        const auto [first, rest] = data::split_text(text_of(text), share);
        return std::pair(object_of(first), object_of(rest));
      },
      "text"_a, "share"_a,
      "The first `share` of a text, rounded down to whole bytes, and the rest: what tests a model "
      "then follows what trains it. Throws Error unless both have two bytes at least.");
  bind_windows(m);
}

}  // namespace weft::python
