// Which text trains a language model, which chooses it and which reports it.
//
//   grammar     sentences of Grammar::tales() (data/sets/grammar.h), whose entropy is known: no
//   files text:FILE   the bytes of a file; a FILE that ends in .txt needs no "text:"
//
// The first 90% train, the next 5% are validation, the last 5% test: what tests a model follows
// what trains it.
#pragma once

#include <optional>
#include <string>

#include "data/sets/text.h"

namespace weft::data {

struct TextSplits {
  Bytes train, validation, test;
  std::optional<double> entropy;  // nats a byte, where it is known
};

/// Whether `spec` names text; data/sets/open.h has the others. Touches no file.
bool is_text(const std::string& spec);

/// For a model that sees `length` bytes. Throws Error naming the file that cannot be read, or that
/// is too short to test such a model on a twentieth of it.
TextSplits open_text(const std::string& spec, int64_t length);

}  // namespace weft::data
