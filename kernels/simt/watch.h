// The emulator's inside: the state of a launch. For the .cc files of kernels/simt alone.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

#include "kernels/simt/async.h"
#include "kernels/simt/emulator.h"
#include "kernels/simt/memory.h"

namespace weft::simt {

inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxBlocksPerCluster = 16;
inline constexpr size_t kMaxThreads = size_t{kMaxThreadsPerBlock} * kMaxBlocksPerCluster;
/// Bulk copies and wgmma groups that can be told apart at a time.
inline constexpr int kPoolAgents = 64;

/// One reservation of address space, so that one comparison tells what an address is: shared
/// memory, then the threads and their stacks, which no other thread may know.
class Workspace {
 public:
  Workspace();
  /// Puts guard pages below the first n stacks.
  void guard_stacks(size_t n);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  char* arena(int block) const { return base_ + block * kArenaBytes; }
  Thread* threads() const { return reinterpret_cast<Thread*>(base_ + kThreadsOffset); }
  char* stack(size_t thread) const { return base_ + kStacksOffset + thread * kStackPitch + kPage; }
  /// Offset of an address; beyond kBytes when it lies elsewhere.
  size_t offset_of(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - base_);
  }

  static constexpr size_t kPage = 4096;
  static constexpr size_t kArenasBytes = kArenaBytes * kMaxBlocksPerCluster;
  static constexpr size_t kThreadsOffset = kArenasBytes;
  static constexpr size_t kStacksOffset =
      (kThreadsOffset + kMaxThreads * sizeof(Thread) + kPage - 1) / kPage * kPage;
  // Frames of instrumented code are large; pages that no frame reaches are never touched. Below
  // each stack lies a page without access: an overflow is a fault at once.
  static constexpr size_t kStackBytes = 256 << 10;
  static constexpr size_t kStackPitch = kStackBytes + kPage;
  static constexpr size_t kBytes = kStacksOffset + kMaxThreads * kStackPitch;

 private:
  char* base_;
  size_t guarded_ = 0;
};

/// What a byte of a block's shared memory is.
enum class ByteState : uint8_t { kOutside, kUnwritten, kWritten };

struct State {
  std::mutex mutex;
  Options options;
  Workspace workspace;

  // The launch.
  std::string kernel;
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  std::span<const std::byte> parameters;  // of the kernel, where its threads share them
  uint64_t random = 1;
  std::vector<Clock> cluster_starts;
  Clock launch_start = 0;
  GlobalShadow global;
  struct Finding {
    std::string key;
    std::string message;  // of the first of its kind
    size_t count = 1;
  };
  std::vector<Finding> findings;

  // The cluster that runs.
  Block blocks[kMaxBlocksPerCluster];
  int n_blocks = 0;
  int n_threads = 0;
  std::deque<Thread*> ready;
  int live = 0;
  Fiber host;
  std::string failure;
  Clock cluster_start = 0;
  Clock last_clock = 0;
  std::vector<ByteState> bytes;   // of the arenas
  std::vector<Granule> granules;  // of the arenas
  Clock pool_clocks[kPoolAgents] = {};
  int pool_agents_used = 0;
  Barrier cluster_barrier;
  uint64_t cluster_phases = 0;  // of its barrier
  KnowledgePtr cluster_known;
  std::unordered_map<const void*, Mbarrier> mbarriers;
  /// What fences before atomics on this address made known, by cluster.
  std::unordered_map<const void*, KnowledgeByCluster> released;

  uint64_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
  bool watches() const { return options.races; }
  /// Of the cluster, block by block.
  std::span<Thread> threads() const {
    return {workspace.threads(), static_cast<size_t>(n_threads)};
  }
  int agents() const { return 2 * n_threads + kPoolAgents; }
};

extern State* the_state;
State& make_state();
inline State& state() { return the_state != nullptr ? *the_state : make_state(); }

/// The next agent of the pool, and a new clock of its.
std::pair<int, Clock> next_pool_agent();

/// Moves the thread's clock on, so that what it does from now on is told apart from what it has
/// released.
void tick(Thread& thread);
/// Adds all that the current thread has done and knows to a release, when accesses are watched.
void release_past(Release& release);
/// A clock that no agent of this cluster has reached.
Clock next_clock(Clock clock);
void learn(Thread& thread, const KnowledgePtr& known);

std::string describe(const Thread& thread);
std::string describe_agent(int agent);
/// Collects a finding for the end of the launch. Of those with one key, which names the kind and
/// the places but not the threads, the first is told.
void report(const std::string& key, const std::string& message);

void make_ready(std::span<Thread*> threads);
/// Those too, and nobody is left.
void make_ready(std::vector<Thread*>& waiting);
/// Suspends the current thread; someone will make it ready.
void wait(const char* operation, const Site& site);

/// Ends the launch with a KernelError. To be called by an emulated thread.
[[noreturn]] void fail_kernel(const std::string& message, const std::string& place,
                              const Thread& thread);
template <class... Arguments>
[[noreturn]] void fail_kernel(const Site& site, fmt::format_string<Arguments...> message,
                              Arguments&&... arguments) {
  fail_kernel(fmt::format(message, std::forward<Arguments>(arguments)...), to_string(site),
              *current);
}
/// Fails when the thread touches registers that a wgmma in flight reads or writes.
void check_registers(const Thread& thread, const void* address, size_t bytes, Place place);
/// Enters an access into the statistics of its source access.
void count_traffic(const Thread& thread, const Event& event, const void* address, size_t bytes);
/// Adds up the statistics of a cluster that ended.
void fold_traffic();

void begin_watching_cluster();
/// So many bytes of a block's arena from an offset on are its to use.
void open_shared(const Block& block, size_t offset, size_t bytes);

}  // namespace weft::simt
