#include "python/docstrings.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace weft::python {
namespace {

struct Comment {
  std::string_view name;
  const char* text;
};

constexpr Comment kComments[] = {
#include "python/docstrings_table.inc"
};

}  // namespace

const char* comment_on(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kComments, name, {}, &Comment::name);
  return found != std::end(kComments) && found->name == name ? found->text : "";
}

const char* docs(std::string_view name) {
  const char* const text = comment_on(name);
  if (*text == '\0') throw InternalError(fmt::format("no header has a comment on {}", name));
  return text;
}

}  // namespace weft::python
