// Memory of a device, cached.
//
// Training allocates the same sizes every step. Freed blocks therefore go to a pool, sorted by
// size, and the next request of about that size takes one back: the operating system, and its page
// faults (87 ms for the weights of a ViT-B/16), are met in the first step only. Large blocks ask
// for huge pages.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "core/device.h"

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

/// A caching allocator; safe to use from several threads. Blocks are aligned to 64 bytes.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device device) : device_(device) {}
  ~CachingAllocator() { release_pool(); }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// At least `bytes` bytes, uninitialised; nullptr for 0. Throws Error with requested, live,
  /// reserved and peak bytes when the system has no more, after giving back the pool.
  void* allocate(size_t bytes);
  /// Returns a block of allocate(bytes).
  void deallocate(void* block, size_t bytes);

  MemoryStats stats() const;
  void reset_peak();
  /// Gives pooled blocks back to the system.
  void release_pool();

 private:
  void* take_from_system(size_t capacity);
  void release_pool_locked();

  const Device device_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> pool_;  // capacity -> block
  std::map<void*, size_t> capacity_;   // of every block that is in use
  MemoryStats stats_;
};

/// The allocator of a device; it lives until the program ends.
CachingAllocator& allocator(Device device);

}  // namespace weft
