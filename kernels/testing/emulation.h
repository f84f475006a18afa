// How an emulated device runs kernels, and what it saw. A real device has its own ways, and
// profilers: there all of this does nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::kernels {

/// From now on kernels run under schedule number `run`: 0 runs threads in their order, odd numbers
/// in a random one with asynchronous copies done as late as is legal, even numbers backwards.
void use_schedule(int run);

/// Whether every access to memory is watched for races and bounds, as it is at first. Several times
/// faster without: for tests of what stands above kernels.
void watch_accesses(bool watches);

/// From now on the device has the limits of that GPU: its compute capability, its shared memory.
/// Throws Error naming those that can be emulated.
void use_gpu(std::string_view gpu);

/// From now on products have the bits of that GPU's tensor cores (numerics/tensor_core.h); empty:
/// sums in f32, which is faster. Throws Error for an unknown GPU.
void use_tensor_core(std::string_view gpu);

/// How a source access used memory, summed over the warps that executed it. A transaction is a pass
/// over the banks of shared memory or a sector of 32 bytes of global memory; `ideal` is what the
/// same bytes need at least, so that transactions over ideal is the cost of bank conflicts, and of
/// accesses that do not coalesce. An estimate: the accesses are those that the host compiler kept.
struct AccessTraffic {
  std::string place;  // file and line, and where it was inlined
  bool is_shared = false;
  const char* kind = "";  // "read", "write", "atomic"
  uint64_t executions = 0, transactions = 0, ideal = 0;
};

/// Counts from now on, or no longer.
void count_traffic(bool counts);
/// What was counted since this was last asked, dearest first.
std::vector<AccessTraffic> take_traffic();

}  // namespace weft::kernels
