// What every engine of collectives promises, as one program that each rank runs.
//
// Integer-valued data compares bit for bit, in every dtype; real data is compared with the written
// order of summation, bit for bit too. Throws Error naming the check that failed. Free of a test
// framework's assertions, which are not made for several threads or processes.
#pragma once

#include "dist/comm/communicator.h"

namespace weft::dist {

/// What an engine does not promise.
struct ConformanceOptions {
  /// False: sums and means of reals are within the bounds of any order of summation, rounded at
  /// every step, and an all_reduce has the same bits on all ranks.
  bool sums_have_one_order = true;
  /// False: ranks that use two groups in different orders wait for each other.
  bool groups_run_apart = true;
};

/// With tensors on `device`, each rank its own.
void run_conformance(Communicator& world, Device device = {},
                     const ConformanceOptions& options = {});

}  // namespace weft::dist
