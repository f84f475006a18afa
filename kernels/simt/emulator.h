// A CUDA grid on the host: one fiber per CUDA thread, one scheduler over the blocks of a cluster.
//
// The clusters of a grid run one after another, the threads of a cluster in turns: a thread runs
// until it waits for others. Options choose the order; a correct kernel gives the same bits in all.
// A fault ends the launch with simt::KernelError, which names the kernel, the block, the threads
// and the place in the source.
//
// The functions here are what kernels/simt/builtins.h, the device's vocabulary, is made of. One
// launch runs at a time; launches from several host threads wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/sanitizer.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/knowledge.h"
#include "kernels/simt/symbol.h"
#include "kernels/simt/types.h"

namespace weft::simt {

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kFullMask = 0xffffffffu;
inline constexpr size_t kArenaBytes = 228 << 10;     // a block's shared memory, with gaps
inline constexpr size_t kMaxStaticBytes = 48 << 10;  // that need not be asked for
inline constexpr int kNamedBarriers = 16;

/// A fault that the emulator found in a kernel.
class KernelError : public Error {
 public:
  using Error::Error;
};

enum class Order : uint8_t { kForward, kReverse, kRandom };
/// When asynchronous copies and tensor-core operations take effect: as early or as late as allowed.
enum class Completion : uint8_t { kEager, kOnWait };

/// How launches run from now on.
struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;  // of Order::kRandom
  Completion completion = Completion::kEager;
  /// The GPU whose bits mma and wgmma give (numerics/tensor_core.h); empty: sums in f32, faster.
  std::string_view tensor_core = {};
  /// Watch every access: races, bounds, unwritten memory. AddressSanitizer's build has no hooks.
  bool races = !sanitizer::is_linked();
  bool traffic = false;  // count bank conflicts and sectors: take_traffic()
};
Options& options();

struct Block;
struct Warp;
struct AsyncQueue;
struct WarpgroupQueue;

/// A CUDA thread.
struct Thread {
  uint3 index{};
  Block* block = nullptr;
  Warp* warp = nullptr;
  int linear = 0;  // in its block
  int lane = 0;
  bool exited = false;
  const char* waits_for = nullptr;  // an operation, for messages; null while runnable
  Site site;                        // where it waits
  uint64_t in = 0, out = 0;         // its operand and result in a warp operation
  void* pointers[3] = {};           // operands of operations on arrays
  Fiber fiber;

  int agent = 0;  // in the cluster; see knowledge.h
  Clock clock = 0;
  KnowledgePtr known;
  KnowledgePtr fenced;          // at its last fence: what its next atomics on shared memory release
  KnowledgePtr fenced_device;   // at its last device-wide fence: what those on global memory do
  Clock fence_clock = 0;        // what those fences released
  KnowledgeByCluster acquired;  // by atomics, for the next fence
  uint64_t cluster_phase = 0;   // of the cluster's barrier, at its arrival
  std::vector<std::pair<float*, float*>> in_flight;  // registers that a wgmma works on
  std::shared_ptr<AsyncQueue> copies;                // cp.async
  std::shared_ptr<AsyncQueue> bulk_copies;           // TMA stores
};

/// Lanes of a warp that have reached a collective operation and wait for the rest of its mask.
struct Meeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  const char* operation = nullptr;
  Site site;
};

struct Warp {
  Block* block = nullptr;
  Thread* lanes = nullptr;
  int size = 0;
  uint32_t exited = 0;
  std::vector<Meeting> meetings;

  uint32_t existing() const { return size == kWarpSize ? kFullMask : (1u << size) - 1; }
};

/// barrier 0 is __syncthreads'.
struct Barrier {
  int arrived = 0;
  int expected = 0;
  std::vector<Thread*> waiting;
  Release release;
};

/// What another block of the cluster does to a block's shared memory.
struct RemoteAccess {
  const char* operation;
  Site site;
  int agent;
  Clock clock;
};

struct Block {
  uint3 index{};
  int rank = 0;  // in its cluster
  int live = 0;
  char* arena = nullptr;  // its shared memory: dynamic first, then static arrays as they are met
  size_t dynamic_bytes = 0;
  size_t shared_bytes = 0;
  struct StaticArray {
    const void* key;
    size_t offset;
  };
  std::vector<StaticArray> static_arrays;
  std::span<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[kNamedBarriers];
  std::vector<std::shared_ptr<WarpgroupQueue>> warpgroups;
  std::vector<RemoteAccess> remote;  // while accesses are watched
  Release exits;                     // what its threads knew when they exited
};

struct LaunchShape {
  dim3 grid, block, cluster;
  size_t dynamic_shared_bytes = 0;
};

/// The thread that runs, and null in host code. Every emulated access looks at it.
extern constinit thread_local Thread* current __attribute__((tls_model("initial-exec")));
/// Of the launch that runs.
extern LaunchShape launch_shape;

/// Runs body(context) once per thread of the grid; its threads may read `parameters`, those of the
/// kernel that all threads share. Throws KernelError.
void run_grid(const char* kernel, const LaunchShape& shape, void (*body)(void*), void* context,
              std::span<const std::byte> parameters = {});

/// Lets the other threads run.
void yield();
/// bar.sync: waits until `threads` threads (0: all live ones of the block) have arrived.
void barrier_sync(int id, int threads, const Site& site);
/// bar.arrive: arrives without waiting.
void barrier_arrive(int id, int threads, const Site& site);

/// Waits until all lanes of the mask have arrived at the same operation; the last one calls
/// run(warp, mask), which reads their operands and writes their results.
using WarpFunction = void (*)(Warp& warp, uint32_t mask);
void meet(uint32_t mask, const char* operation, const Site& site, WarpFunction run);

/// The static shared array of a declaration, identified by `key`, in the current block.
void* static_shared(const void* key, size_t bytes, size_t alignment);
void* dynamic_shared();

}  // namespace weft::simt
