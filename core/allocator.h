// Memory of a device, cached, in the order of streams.
//
// Training allocates the same sizes every step. Freed blocks therefore go to a pool, and the next
// request of about that size takes one back: the operating system, and its page faults (87 ms for
// the weights of a ViT-B/16), are met in the first step only. Small blocks of the CPU have lists of
// their own, one for each size: a tensor of a few numbers costs no search.
//
// On a CUDA device there is a pool for each stream. A block belongs to the stream that was current
// when it was allocated; it may be freed while kernels of that stream still run, because whoever
// gets it next submits to the same stream, behind them. Work of another stream is announced with
// record_use(): the block then rests until that work is done.
//
// A thread that captures a graph (core/graph.h) may neither ask whether events are done nor give
// memory back to CUDA. What it frees then rests until a request that comes outside a capture.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "core/memory_account.h"
#include "core/runtime.h"

namespace weft {

/// Bytes. live: in use by tensors, as they asked for it; reserved: taken from the system, live or
/// pooled; peak_*: the highest values since reset_peak().
struct MemoryStats {
  size_t live = 0;
  size_t reserved = 0;
  size_t peak_live = 0;
  size_t peak_reserved = 0;
  size_t allocations = 0;      // requests served
  size_t system_requests = 0;  // of these, the ones that went to the operating system
};

/// Where an allocator's memory comes from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// nullptr when there is no more.
  virtual void* take(size_t bytes) = 0;
  virtual void give_back(void* block) = 0;
  /// The size to take for a request: at least `bytes`.
  virtual size_t capacity_for(size_t bytes) const = 0;
  /// False where a freed block goes back at once, so that a use after free is seen.
  virtual bool caches() const { return true; }
  /// What the system says of its memory, for messages; may be empty.
  virtual std::string describe() const { return {}; }
};

/// The operating system, a CUDA device, or the emulated one.
std::unique_ptr<MemorySource> make_memory_source(Device device);

/// A caching allocator; safe to use from several threads. Blocks are aligned to 64 bytes, on CUDA
/// devices to 256.
class CachingAllocator {
 public:
  using StreamHandle = runtime::StreamHandle;

  explicit CachingAllocator(Device device) : CachingAllocator(device, make_memory_source(device)) {}
  CachingAllocator(Device device, std::unique_ptr<MemorySource> source)
      : device_(device), source_(std::move(source)) {}
  ~CachingAllocator() { release_pool(); }

  /// At least `bytes` bytes, uninitialised, for work on the device's current stream; nullptr for 0.
  /// When the system has no more, gives back the pool and tries again, then throws Error with the
  /// requested, live, reserved and peak bytes, the largest blocks by op, and what to try.
  void* allocate(size_t bytes);
  void* allocate(size_t bytes, StreamHandle stream);
  /// Returns a block of allocate(bytes).
  void deallocate(void* block, size_t bytes);
  /// Says that work of another stream than the block's uses it.
  void record_use(void* block, StreamHandle stream);

  /// Gives a live block another kind; nothing happens to what is no block of this allocator.
  void assign(void* block, MemoryKind kind);

  /// Blocks freed on a held stream stay its own: a captured graph writes to them whenever it runs.
  void hold(StreamHandle stream);
  /// Of a stream that is about to go, its work done: its blocks are those of `heir` from now on.
  void let_go(StreamHandle stream, StreamHandle heir);

  /// Gives the blocks allocated since the last call the name of the op they were made for.
  void name_recent(std::string_view op);

  MemoryStats stats() const;
  void reset_peak();
  /// Gives pooled blocks back to the system, except those of held streams.
  void release_pool();
  /// "layer_norm 12 blocks of 1258291 bytes, ...": live bytes by op, most first.
  std::string largest(size_t count) const;

 private:
  struct Block {
    size_t capacity = 0, bytes = 0;
    StreamHandle stream = nullptr;
    std::vector<StreamHandle> users;  // other streams
    std::string op;
    memory::Owner owner;
  };
  struct Resting {  // freed, but work of other streams may still use it
    void* block;
    size_t capacity;
    StreamHandle stream;
    std::vector<StreamHandle> users;  // whose events a capture has put off
    std::vector<runtime::EventHandle> events;
  };
  using Pool = std::multimap<size_t, void*>;  // capacity -> block
  static constexpr size_t kSmallBytes = 1024, kSmallStep = 64;

  /// Whether a block of that many bytes has a list for its size where no account counts it.
  bool is_small(size_t bytes) const { return has_small_ && bytes <= kSmallBytes; }
  std::vector<void*>& small_of(size_t bytes) { return small_[(bytes - 1) / kSmallStep]; }
  void* take_locked(size_t capacity, size_t bytes);
  void pool_locked(void* block, size_t capacity, StreamHandle stream);
  void record_users_locked(Resting& resting);
  void wake_resting_locked(bool wait);
  void release_pool_locked();
  void release_locked(Pool& pool);
  std::string largest_locked(size_t count) const;

  const Device device_;
  const std::unique_ptr<MemorySource> source_;
  const bool has_small_ = device_.type == DeviceType::cpu && source_->caches();
  mutable std::mutex mutex_;
  std::map<StreamHandle, Pool> pools_;
  // Small blocks that were freed, by size. While they live these have no entry in live_.
  std::vector<void*> small_[kSmallBytes / kSmallStep];
  std::unordered_map<void*, Block> live_;
  std::vector<Resting> resting_;
  std::set<StreamHandle> held_;
  std::vector<void*> unnamed_;
  MemoryStats stats_;
};

/// The allocator of a device; it lives until the program ends. Throws Error as require_device().
CachingAllocator& allocator(Device device);

}  // namespace weft
