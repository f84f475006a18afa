// Fabric's collectives: of tensors and numbers, also in tuples, lists and dicts.
#pragma once

#include "python/casters.h"
#include "train/fabric.h"

namespace weft::python {

void bind_collectives(nb::module_& m, nb::class_<train::Fabric>& fabric);

}  // namespace weft::python
