#include "core/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace weft {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Large blocks are whole pages. A pooled block serves requests down to 7/8 of its size: exact reuse
// is the rule in training, and the waste of the exceptions is bounded.
size_t capacity_for(size_t bytes) { return round_up(bytes, bytes < kPage ? kAlignment : kPage); }
bool is_reusable(size_t capacity, size_t wanted) { return capacity - wanted <= wanted / 7; }

}  // namespace

void* CachingAllocator::take_from_system(size_t capacity) {
  const bool huge = capacity >= kHugePage;
  void* block = std::aligned_alloc(huge ? kHugePage : kAlignment,
                                   huge ? round_up(capacity, kHugePage) : capacity);
  if (block && huge) madvise(block, capacity, MADV_HUGEPAGE);
  return block;
}

void* CachingAllocator::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t wanted = capacity_for(bytes);
  std::lock_guard lock(mutex_);
  void* block = nullptr;
  size_t capacity = wanted;
  const auto pooled = pool_.lower_bound(wanted);
  if (pooled != pool_.end() && is_reusable(pooled->first, wanted)) {
    capacity = pooled->first;
    block = pooled->second;
    pool_.erase(pooled);
  } else {
    block = take_from_system(capacity);
    if (!block) {
      release_pool_locked();
      block = take_from_system(capacity);
    }
    WEFT_CHECK(
        block,
        "out of memory on {}: requested {} bytes; live {}, reserved {}, peak {}. Try a smaller "
        "batch, --accumulate or --checkpoint-activations",
        device_, bytes, stats_.live, stats_.reserved, stats_.peak_live);
    stats_.reserved += capacity;
    ++stats_.system_requests;
  }
  capacity_.emplace(block, capacity);
  ++stats_.allocations;
  stats_.live += bytes;
  stats_.peak_live = std::max(stats_.peak_live, stats_.live);
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  return block;
}

void CachingAllocator::deallocate(void* block, size_t bytes) {
  if (!block) return;
  std::lock_guard lock(mutex_);
  const auto entry = capacity_.find(block);
  pool_.emplace(entry->second, block);
  capacity_.erase(entry);
  stats_.live -= bytes;
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak_live = stats_.live;
  stats_.peak_reserved = stats_.reserved;
}

void CachingAllocator::release_pool() {
  std::lock_guard lock(mutex_);
  release_pool_locked();
}

void CachingAllocator::release_pool_locked() {
  for (const auto& [capacity, block] : pool_) {
    std::free(block);
    stats_.reserved -= capacity;
  }
  pool_.clear();
}

CachingAllocator& allocator(Device device) {
  WEFT_CHECK(device.type == DeviceType::cpu, "device {} is not available in this build", device);
  static std::mutex mutex;
  // Never destroyed: tensors in static storage may outlive every static of this file.
  static auto& allocators = *new std::map<int, std::unique_ptr<CachingAllocator>>;
  std::lock_guard lock(mutex);
  auto& entry = allocators[device.index];
  if (!entry) entry = std::make_unique<CachingAllocator>(device);
  return *entry;
}

}  // namespace weft
