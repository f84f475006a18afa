#include "core/allocator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/graph.h"
#include "core/stream.h"

namespace weft {
namespace {

// A pooled block serves requests down to 7/8 of its size: exact reuse is the rule in training, and
// the waste of the exceptions is bounded.
bool is_reusable(size_t capacity, size_t wanted) { return capacity - wanted <= wanted / 7; }

bool is_capturing() { return DeviceGraph::capturing() != nullptr; }

}  // namespace

void* CachingAllocator::allocate(size_t bytes) {
  return allocate(bytes, current_stream_handle(device_));
}

void* CachingAllocator::allocate(size_t bytes, StreamHandle stream) {
  if (bytes == 0) return nullptr;
  memory::Owner owner = memory::current_owner();
  std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (is_small(bytes) && !owner.counts) {
    std::vector<void*>& freed = small_of(bytes);
    if (freed.empty()) {
      block = take_locked(source_->capacity_for(bytes), bytes);
    } else {
      block = freed.back();
      freed.pop_back();
    }
  } else {
    const size_t wanted = source_->capacity_for(bytes);
    if (!is_capturing()) wake_resting_locked(false);
    size_t capacity = wanted;
    Pool& pool = pools_[stream];
    const auto pooled = pool.lower_bound(wanted);
    if (pooled != pool.end() && is_reusable(pooled->first, wanted)) {
      capacity = pooled->first;
      block = pooled->second;
      pool.erase(pooled);
    } else {
      block = take_locked(wanted, bytes);
    }
    memory::allocated(owner, bytes);
    live_.emplace(block, Block{capacity, bytes, stream, {}, {}, std::move(owner)});
    if (device_.type != DeviceType::cpu) unnamed_.push_back(block);
  }
  ++stats_.allocations;
  stats_.live += bytes;
  stats_.peak_live = std::max(stats_.peak_live, stats_.live);
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  return block;
}

/// A block of the system, of that capacity, for so many bytes.
void* CachingAllocator::take_locked(size_t capacity, size_t bytes) {
  void* block = source_->take(capacity);
  if (!block && !is_capturing()) {
    wake_resting_locked(true);
    release_pool_locked();
    block = source_->take(capacity);
  }
  if (!block) {
    const std::string largest = largest_locked(5), system = source_->describe();
    fail(
        "out of memory on {}: requested {} bytes{}; live {}, reserved {}, peak {}{}{}. Try a "
        "smaller batch, --accumulate or --checkpoint-activations",
        device_, bytes, is_capturing() ? " while a graph is captured" : "", stats_.live,
        stats_.reserved, stats_.peak_live, system.empty() ? "" : ", " + system,
        largest.empty() ? "" : "; most by op: " + largest);
  }
  stats_.reserved += capacity;
  ++stats_.system_requests;
  return block;
}

void CachingAllocator::pool_locked(void* block, size_t capacity, StreamHandle stream) {
  if (source_->caches() || held_.contains(stream)) {
    // Before its equals: the block freed last, perhaps still in cache, is the first to be taken.
    Pool& pool = pools_[stream];
    pool.emplace_hint(pool.lower_bound(capacity), capacity, block);
    return;
  }
  if (is_capturing()) return resting_.push_back({block, capacity, stream, {}, {}});
  source_->give_back(block);
  stats_.reserved -= capacity;
}

void CachingAllocator::deallocate(void* block, size_t bytes) {
  if (!block) return;
  std::lock_guard lock(mutex_);
  stats_.live -= bytes;
  const auto entry = live_.find(block);
  if (entry == live_.end()) {
    WEFT_ASSERT(is_small(bytes));
    small_of(bytes).push_back(block);
    return;
  }
  const Block freed = std::move(entry->second);
  live_.erase(entry);
  memory::freed(freed.owner, bytes);
  if (freed.users.empty()) return pool_locked(block, freed.capacity, freed.stream);
  resting_.push_back({block, freed.capacity, freed.stream, freed.users, {}});
  if (!is_capturing()) record_users_locked(resting_.back());
}

void CachingAllocator::record_users_locked(Resting& resting) {
  for (StreamHandle user : std::exchange(resting.users, {})) {
    resting.events.push_back(runtime::create_event(device_.index));
    runtime::record(device_.index, resting.events.back(), user);
  }
}

void CachingAllocator::record_use(void* block, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  const auto entry = live_.find(block);
  if (entry == live_.end() || entry->second.stream == stream) return;
  auto& users = entry->second.users;
  if (std::ranges::find(users, stream) == users.end()) users.push_back(stream);
}

void CachingAllocator::assign(void* block, MemoryKind kind) {
  std::lock_guard lock(mutex_);
  const auto entry = live_.find(block);
  if (entry == live_.end()) return;
  memory::Owner& owner = entry->second.owner;
  memory::freed(owner, entry->second.bytes);
  owner.kind = kind;
  memory::allocated(owner, entry->second.bytes);
}

void CachingAllocator::wake_resting_locked(bool wait) {
  for (Resting& resting : resting_) record_users_locked(resting);
  const auto is_in_use = [&](const Resting& r) {
    for (runtime::EventHandle event : r.events) {
      if (wait) {
        runtime::synchronize_event(device_.index, event);
      } else if (!runtime::is_done(device_.index, event)) {
        return true;
      }
    }
    return false;
  };
  // Out of the list before anything is done with them: each of these calls may throw, and a block
  // that is still listed then would be pooled twice.
  const auto first = std::partition(resting_.begin(), resting_.end(), is_in_use);
  const std::vector<Resting> awake(std::make_move_iterator(first),
                                   std::make_move_iterator(resting_.end()));
  resting_.erase(first, resting_.end());
  for (const Resting& r : awake) {
    for (runtime::EventHandle event : r.events) runtime::destroy_event(device_.index, event);
    pool_locked(r.block, r.capacity, r.stream);
  }
}

void CachingAllocator::hold(StreamHandle stream) {
  std::lock_guard lock(mutex_);
  held_.insert(stream);
}

void CachingAllocator::let_go(StreamHandle stream, StreamHandle heir) {
  std::lock_guard lock(mutex_);
  held_.erase(stream);
  const auto inherit = [&](auto& block) {
    std::erase(block.users, stream);
    if (block.stream == stream) block.stream = heir;
  };
  for (Resting& resting : resting_) inherit(resting);
  for (auto& [block, live] : live_) inherit(live);
  const Pool pool = std::exchange(pools_[stream], {});
  pools_.erase(stream);
  for (const auto& [capacity, block] : pool) pool_locked(block, capacity, heir);
}

void CachingAllocator::name_recent(std::string_view op) {
  std::lock_guard lock(mutex_);
  for (void* block : unnamed_) {
    const auto entry = live_.find(block);
    if (entry != live_.end() && entry->second.op.empty()) entry->second.op = op;
  }
  unnamed_.clear();
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
  wake_resting_locked(true);
  release_pool_locked();
}

void CachingAllocator::release_pool_locked() {
  for (auto& [stream, pool] : pools_) {
    if (!held_.contains(stream)) release_locked(pool);
  }
  for (size_t i = 0; i < std::size(small_); ++i) {
    for (void* block : small_[i]) source_->give_back(block);
    stats_.reserved -= small_[i].size() * (i + 1) * kSmallStep;
    small_[i].clear();
  }
}

void CachingAllocator::release_locked(Pool& pool) {
  for (const auto& [capacity, block] : pool) {
    source_->give_back(block);
    stats_.reserved -= capacity;
  }
  pool.clear();
}

std::string CachingAllocator::largest(size_t count) const {
  std::lock_guard lock(mutex_);
  return largest_locked(count);
}

std::string CachingAllocator::largest_locked(size_t count) const {
  struct Total {
    size_t bytes = 0, blocks = 0;
  };
  std::map<std::string, Total> by_op;
  for (const auto& [block, info] : live_) {
    if (info.op.empty()) continue;
    Total& total = by_op[info.op];
    total.bytes += info.bytes;
    ++total.blocks;
  }
  std::vector<std::pair<std::string, Total>> totals(by_op.begin(), by_op.end());
  std::ranges::stable_sort(totals, std::greater{}, [](const auto& t) { return t.second.bytes; });
  std::string text;
  totals.resize(std::min(count, totals.size()));
  for (const auto& [op, total] : totals) {
    text += fmt::format("{}{} {} bytes in {} {}", text.empty() ? "" : ", ", op, total.bytes,
                        total.blocks, total.blocks == 1 ? "block" : "blocks");
  }
  return text;
}

CachingAllocator& allocator(Device device) {
  if (device == Device{}) {  // asked for every tensor: no lock, no search
    static auto& cpu = *new CachingAllocator(device);
    return cpu;
  }
  static std::mutex mutex;
  // Never destroyed: tensors in static storage may outlive every static of this file.
  static auto& allocators = *new std::map<std::pair<DeviceType, int>, CachingAllocator*>;
  std::lock_guard lock(mutex);
  auto& entry = allocators[{device.type, device.index}];
  if (!entry) {
    require_device(device);
    entry = new CachingAllocator(device);
  }
  return *entry;
}

}  // namespace weft
