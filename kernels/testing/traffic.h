// How the kernels of the emulated device use memory, source access by source access.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::kernels {

/// A source access, summed over the warps that executed it. A transaction is a pass over the banks
/// of shared memory or a sector of 32 bytes of global memory; `ideal` is what the same bytes need
/// at least, so that transactions over ideal is the way of conflicts, and of accesses that do not
/// coalesce. An estimate: the accesses are those that the host compiler kept.
struct AccessTraffic {
  std::string place;  // file, line and function
  bool is_shared = false;
  const char* kind = "";  // "read", "write", "atomic"
  uint64_t executions = 0, transactions = 0, ideal = 0;
};

/// Counts from now on, or no longer. Real devices count nothing: they have profilers.
void count_traffic(bool counts);

/// What was counted since this was last asked, dearest first.
std::vector<AccessTraffic> take_traffic();

}  // namespace weft::kernels
