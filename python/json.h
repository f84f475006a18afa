// JSON as Python's dicts and lists.
//
// What JSON has no word for is an object of one key: {"weft.float": "inf"}, "-inf" and "nan", and a
// tensor, {"weft.tensor": "0"}, by its name among those beside the JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "python/casters.h"

namespace weft::python {

/// Throws Error naming a tensor that is not among `tensors`.
nb::object object_of(const nlohmann::json& json, const NamedTensors& tensors = {});

/// Tensors anywhere inside are appended to `tensors`, and numbered. A tuple is a list there, and a
/// dict has no order. Throws a TypeError for what JSON cannot hold: keys that are no texts,
/// objects, and without `tensors` tensors.
nlohmann::json json_of(nb::handle object, NamedTensors* tensors = nullptr);

}  // namespace weft::python
