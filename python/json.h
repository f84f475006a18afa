// JSON as Python's dicts and lists.
#pragma once

#include <nlohmann/json.hpp>

#include "python/casters.h"

namespace weft::python {

inline nb::object object_of(const nlohmann::json& json) {
  return nb::module_::import_("json").attr("loads")(json.dump());
}

/// Throws a TypeError for what JSON cannot hold.
inline nlohmann::json json_of(nb::handle object) {
  return nlohmann::json::parse(
      nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(object)));
}

}  // namespace weft::python
