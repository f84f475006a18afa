// What every engine of collectives promises, as one program that each rank runs.
//
// Integer-valued data compares bit for bit, in every dtype; real data is compared with the written
// order of summation, bit for bit too. Throws Error naming the check that failed. Free of a test
// framework's assertions, which are not made for several threads or processes.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// With tensors on `device`, each rank its own.
void run_conformance(Communicator& world, Device device = {});

}  // namespace weft::dist
