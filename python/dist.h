// What weft.dist and weft.train's collectives have in common.
#pragma once

#include <string>

#include "dist/comm/communicator.h"

namespace weft::python {

/// "sum", "mean", "max" or "min". Throws Error for anything else.
dist::ReduceOp parse_op(const std::string& name);

}  // namespace weft::python
