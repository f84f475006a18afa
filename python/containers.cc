#include "python/containers.h"

namespace weft::python {
namespace {

bool is_sequence(nb::handle part) {
  return nb::isinstance<nb::tuple>(part) || nb::isinstance<nb::list>(part);
}

}  // namespace

void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f) {
  if (nb::isinstance<nb::dict>(part)) {
    for (const auto& [key, value] : nb::borrow<nb::dict>(part)) for_each_leaf(value, f);
  } else if (is_sequence(part)) {
    for (nb::handle inner : part) for_each_leaf(inner, f);
  } else {
    f(part);
  }
}

nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f) {
  if (nb::isinstance<nb::dict>(part)) {
    const nb::object copy = part.attr("copy")();  // of its own class
    for (const auto& [key, value] : nb::borrow<nb::dict>(part)) {
      copy[key] = with_each_leaf(value, f);
    }
    return copy;
  }
  if (!is_sequence(part)) return f(part);
  nb::list parts;
  for (nb::handle inner : part) parts.append(with_each_leaf(inner, f));
  if (!nb::isinstance<nb::tuple>(part)) return parts;
  // A named tuple stays one.
  return nb::hasattr(part, "_make") ? part.type().attr("_make")(parts)
                                    : nb::object(nb::tuple(parts));
}

}  // namespace weft::python
