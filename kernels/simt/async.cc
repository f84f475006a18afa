#include "kernels/simt/async.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/simt/watch.h"

namespace weft::simt {
namespace {

constexpr size_t kBulkAlignment = 16, kBoxAlignment = 128;
// Bytes whose copy is under way hold NaN in every floating format.
constexpr int kPoison = 0xff;

bool is_eager() { return state().options.completion == Completion::kEager; }

AsyncQueue& queue_of(std::shared_ptr<AsyncQueue>& queue) {
  if (!queue) queue = std::make_shared<AsyncQueue>();
  return *queue;
}

/// An agent of the pool, with a new clock, that knows what the current thread knows.
AsyncAgent bulk_agent(const Site& site) {
  if (!state().watches()) return {0, 0, current, nullptr, site, true};
  const auto [agent, clock] = next_pool_agent();
  KnowledgePtr known = with_event(current->known, current->agent, current->clock);
  return {agent, clock, current, std::move(known), site, true};
}

void check_shared(const char* operation, const void* address, size_t alignment, const Site& site) {
  if (!is_shared(address)) fail_kernel(site, "{}: {} is not in shared memory", operation, address);
  if (state().workspace.offset_of(address) % kArenaBytes % alignment != 0) {
    fail_kernel(site, "misaligned {}: expected a shared address that is a multiple of {}",
                operation, alignment);
  }
}

/// The block of the cluster in whose shared memory an address lies.
Block& block_of(const void* address) {
  return state().blocks[state().workspace.offset_of(address) / kArenaBytes];
}

/// To be said of an operation on another block's shared memory, which has to be there.
void enter_remote(const void* address, const RemoteAccess& access) {
  Block& block = block_of(address);
  if (&block == current->block) return;
  if (block.live == 0) {
    fail_kernel(access.site, "block {} of the cluster exits before {} on its shared memory is over",
                block.rank, access.operation);
  }
  if (state().watches()) block.remote.push_back(access);
}

Mbarrier& find_mbarrier(uint64_t* barrier, const char* operation, const Site& site) {
  check_shared(operation, barrier, sizeof(uint64_t), site);
  const auto entry = state().mbarriers.find(barrier);
  if (entry == state().mbarriers.end()) {
    fail_kernel(site, "{}: there is no initialised mbarrier at this address", operation);
  }
  return entry->second;
}

/// Ends the phase when all arrivals and all announced bytes are there.
void complete_phase(Mbarrier& barrier, const Site& site) {
  if (barrier.pending != 0 || barrier.transactions != 0) return;
  if (!barrier.observed) {
    report(fmt::format("phase {}", to_string(site)),
           fmt::format("{}: an mbarrier's phase completes although nobody has observed the last "
                       "one: a wait is missing or an arrival too many",
                       to_string(site)));
  }
  ++barrier.phases;
  barrier.observed = false;
  barrier.pending = barrier.expected;
  barrier.completed = barrier.release.take();
  make_ready(barrier.waiting);
}

/// complete_tx: `bytes` that a copy brought.
void complete_transaction(uint64_t* address, size_t bytes, const AsyncAgent& agent) {
  const auto entry = state().mbarriers.find(address);
  if (entry == state().mbarriers.end()) return;
  Mbarrier& barrier = entry->second;
  barrier.transactions -= static_cast<int64_t>(bytes);
  if (state().watches()) barrier.release.add(agent.known, agent.agent, agent.clock);
  complete_phase(barrier, agent.site);
}

/// The contiguous pieces of a box: f(offset in the dense box, bytes, global address or null where
/// the piece lies outside the tensor).
template <class F>
void for_each_piece(const TensorMap& map, const Coordinates& corner, F&& f) {
  uint32_t index[TensorMap::kMaxRank] = {};
  const size_t row_bytes = map.box[0] * map.element_bytes;
  for (size_t offset = 0;; offset += row_bytes) {
    char* address = static_cast<char*>(map.base);
    bool inside = true;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t at = int64_t{corner[d]} + index[d];
      inside = inside && at >= 0 && at < static_cast<int64_t>(map.dims[d]);
      address += at * static_cast<int64_t>(map.strides[d]);
    }
    const int64_t begin = corner[0];
    for (uint32_t i = 0; i < map.box[0];) {
      // A run of elements that are all inside or all outside, within 16 bytes: a swizzle's unit.
      const auto inside_at = [&](uint32_t e) {
        return inside && begin + e >= 0 && begin + e < static_cast<int64_t>(map.dims[0]);
      };
      uint32_t end = i + 1;
      while (end < map.box[0] && inside_at(end) == inside_at(i) &&
             (offset + end * map.element_bytes) % kBulkAlignment != 0) {
        ++end;
      }
      f(offset + i * map.element_bytes, (end - i) * map.element_bytes,
        inside_at(i) ? address + (begin + i) * static_cast<int64_t>(map.element_bytes) : nullptr);
      i = end;
    }
    int d = 1;
    for (; d < map.rank; ++d) {
      if (++index[d] < map.box[d]) break;
      index[d] = 0;
    }
    if (d >= map.rank) return;
  }
}

size_t box_bytes(const TensorMap& map) {
  size_t bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

/// Where a byte of a box lies: the swizzle looks at the address within the block's shared memory.
char* box_address(void* box, size_t offset, Swizzle swizzle) {
  State& s = state();
  const size_t base = s.workspace.offset_of(box);
  const size_t arena = base / kArenaBytes * kArenaBytes;
  return static_cast<char*>(box) - base + arena + swizzled(base - arena + offset, swizzle);
}

/// Completes the group's work; what it read or wrote is then known to the thread.
void finish_group(AsyncQueue::Group& group) {
  for (auto& work : group.work) work();
  group.work.clear();
}

/// A copy that ends in complete_tx: now, or when somebody waits for the barrier.
void submit_load(uint64_t* barrier, std::function<void()> copy) {
  if (is_eager()) return copy();
  Mbarrier& target = state().mbarriers.find(barrier)->second;
  target.copies.push_back(std::move(copy));
  make_ready(target.waiting);  // to look again, which makes the copy
}

}  // namespace

// cp.async.

void cp_async(void* to, const void* from, size_t bytes, size_t source_bytes, const Site& site) {
  check_shared("cp.async", to, bytes, site);
  State& s = state();
  Thread& self = *current;
  AsyncQueue& queue = queue_of(self.copies);
  if (s.watches()) {
    if (queue.open.clock == 0) {
      queue.open.clock = next_clock(std::max(queue.last_clock, s.cluster_start));
    }
    const AsyncAgent agent{
        s.n_threads + self.agent, queue.open.clock, &self, self.known, site, false};
    access_memory(agent, from, source_bytes, source_bytes == 0 ? 1 : bytes, Access::kRead);
    access_memory(agent, to, bytes, bytes, Access::kWrite);
    tick(self);  // what comes next counts as later
  }
  const auto copy = [=] {
    std::memcpy(to, from, source_bytes);
    std::memset(static_cast<char*>(to) + source_bytes, 0, bytes - source_bytes);
  };
  if (is_eager()) {
    copy();
  } else {
    std::memset(to, kPoison, bytes);
    queue.open.work.push_back(copy);
  }
}

void cp_async_commit() {
  AsyncQueue& queue = queue_of(current->copies);
  if (queue.open.clock != 0) queue.last_clock = queue.open.clock;
  queue.committed.push_back(std::exchange(queue.open, {}));
}

void cp_async_wait(int pending) {
  AsyncQueue& queue = queue_of(current->copies);
  while (queue.committed.size() > static_cast<size_t>(pending)) {
    AsyncQueue::Group& group = queue.committed.front();
    finish_group(group);
    if (group.clock != 0) {
      current->known = with_event(current->known, state().n_threads + current->agent, group.clock);
    }
    queue.committed.erase(queue.committed.begin());
  }
}

void cp_async_mbarrier_arrive(uint64_t* barrier, const Site& site) {
  Mbarrier& state_of = find_mbarrier(barrier, "cp.async.mbarrier.arrive", site);
  State& s = state();
  Thread& self = *current;
  AsyncQueue& queue = queue_of(self.copies);
  AsyncAgent agent{s.n_threads + self.agent,
                   std::max(queue.open.clock, queue.last_clock),
                   &self,
                   self.known,
                   site,
                   false};
  std::vector<std::function<void()>> work;
  for (AsyncQueue::Group& group : queue.committed) {
    std::move(group.work.begin(), group.work.end(), std::back_inserter(work));
    group.work.clear();
  }
  std::move(queue.open.work.begin(), queue.open.work.end(), std::back_inserter(work));
  queue.open.work.clear();
  const auto arrive = [barrier, agent, work = std::move(work)] {
    for (const auto& copy : work) copy();
    Mbarrier& target = state().mbarriers[barrier];
    if (state().watches() && agent.clock != 0) {
      target.release.add(agent.known, agent.agent, agent.clock);
    }
    --target.pending;
    complete_phase(target, agent.site);
  };
  if (is_eager()) {
    arrive();
  } else {
    state_of.copies.push_back(arrive);
    make_ready(state_of.waiting);  // to look again, which makes the copies
  }
  if (s.watches()) tick(self);
}

// mbarriers.

void mbarrier_init(uint64_t* barrier, uint32_t count, const Site& site) {
  check_shared("mbarrier.init", barrier, sizeof(uint64_t), site);
  access_memory(*current, barrier, sizeof(uint64_t), sizeof(uint64_t), Access::kWrite, site);
  if (count == 0) fail_kernel(site, "mbarrier.init: expected at least one arrival");
  Mbarrier& entry = state().mbarriers[barrier];
  entry = Mbarrier{};
  entry.expected = entry.pending = count;
}

void mbarrier_arrive(uint64_t* barrier, uint32_t count, const Site& site) {
  Mbarrier& entry = find_mbarrier(barrier, "mbarrier.arrive", site);
  enter_remote(barrier, {"mbarrier.arrive", site, current->agent, current->clock});
  access_memory(*current, barrier, sizeof(uint64_t), sizeof(uint64_t), Access::kAtomic, site);
  if (count > entry.pending) {
    fail_kernel(site, "mbarrier.arrive: {} arrivals, of which the phase expects {} more", count,
                entry.pending);
  }
  release_past(entry.release);
  entry.pending -= count;
  complete_phase(entry, site);
}

void mbarrier_expect_tx(uint64_t* barrier, uint32_t bytes, const Site& site) {
  Mbarrier& entry = find_mbarrier(barrier, "mbarrier.expect_tx", site);
  access_memory(*current, barrier, sizeof(uint64_t), sizeof(uint64_t), Access::kAtomic, site);
  entry.transactions += bytes;
}

bool mbarrier_test(uint64_t* barrier, uint32_t parity, const Site& site) {
  Mbarrier* entry = &find_mbarrier(barrier, "mbarrier.try_wait", site);
  access_memory(*current, barrier, sizeof(uint64_t), sizeof(uint64_t), Access::kAtomic, site);
  const auto is_complete = [&] { return (entry->phases & 1u) != parity; };
  if (!is_complete() && !entry->copies.empty()) {
    // The latest moment for the copies that this wait is for.
    for (const auto& copy : std::exchange(entry->copies, {})) copy();
    entry = &find_mbarrier(barrier, "mbarrier.try_wait", site);
  }
  if (!is_complete()) return false;
  entry->observed = true;
  learn(*current, entry->completed);
  return true;
}

void mbarrier_wait(uint64_t* barrier, uint32_t parity, const Site& site) {
  while (!mbarrier_test(barrier, parity, site)) {
    find_mbarrier(barrier, "mbarrier.try_wait", site).waiting.push_back(current);
    wait("mbarrier_wait", site);
  }
}

void fence_proxy_async() {
  if (!state().watches()) return;
  Thread& self = *current;
  auto known = std::make_shared<Knowledge>(*self.known);
  known->seen[self.agent] = self.clock;
  for (size_t i = 0; i < known->seen.size(); ++i) {
    known->fenced[i] = std::max(known->fenced[i], known->seen[i]);
  }
  self.known = std::move(known);
  tick(self);
}

// Bulk copies and TMA.

void tma_load(void* to, const TensorMap& map, const Coordinates& at, uint64_t* barrier,
              const Site& site, uint32_t blocks) {
  State& s = state();
  check_shared("cp.async.bulk.tensor", to, kBoxAlignment, site);
  if (blocks >> s.n_blocks != 0) {
    fail_kernel(site, "cp.async.bulk.tensor: multicast to blocks {:#x} of a cluster of {}", blocks,
                s.n_blocks);
  }
  if (blocks == 0) blocks = 1u << current->block->rank;
  const AsyncAgent agent = bulk_agent(site);
  if (s.watches()) {
    for_each_piece(map, at, [&](size_t, size_t bytes, char* from) {
      if (from != nullptr) access_memory(agent, from, bytes, 1, Access::kRead);
    });
  }
  for (unsigned rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    void* const box = cluster_address(to, rank, site);
    auto* const counts = static_cast<uint64_t*>(cluster_address(barrier, rank, site));
    find_mbarrier(counts, "cp.async.bulk.tensor", site);
    enter_remote(counts, {"cp.async.bulk.tensor", site, agent.agent, agent.clock});
    if (s.watches()) {  // counts there: the barrier's initialisation has to have come before
      AsyncAgent counter = agent;
      counter.is_async_proxy = false;
      access_memory(counter, counts, sizeof(uint64_t), sizeof(uint64_t), Access::kAtomic);
    }
    for_each_piece(map, at, [&](size_t offset, size_t bytes, char*) {
      char* const target = box_address(box, offset, map.swizzle);
      if (s.watches()) access_memory(agent, target, bytes, 1, Access::kWrite);
      if (!is_eager()) std::memset(target, kPoison, bytes);
    });
    submit_load(counts, [=] {
      for_each_piece(map, at, [&](size_t offset, size_t bytes, char* from) {
        char* const target = box_address(box, offset, map.swizzle);
        if (from != nullptr) {
          std::memcpy(target, from, bytes);
        } else {
          std::memset(target, 0, bytes);
        }
      });
      complete_transaction(counts, box_bytes(map), agent);
    });
  }
  if (s.watches()) tick(*current);
}

void tma_store(const TensorMap& map, const Coordinates& at, const void* from, const Site& site) {
  check_shared("cp.async.bulk.tensor", from, kBoxAlignment, site);
  const AsyncAgent reader = bulk_agent(site), writer = bulk_agent(site);
  AsyncQueue::Group& group = queue_of(current->bulk_copies).open;
  void* const box = const_cast<void*>(from);
  if (state().watches()) {
    for_each_piece(map, at, [&](size_t offset, size_t bytes, char* to) {
      if (to == nullptr) return;
      access_memory(reader, box_address(box, offset, map.swizzle), bytes, 1, Access::kRead);
      access_memory(writer, to, bytes, 1, Access::kWrite);
    });
    group.reads.emplace_back(reader.agent, reader.clock);
    group.writes.emplace_back(writer.agent, writer.clock);
    tick(*current);
  }
  group.work.push_back([=] {
    for_each_piece(map, at, [&](size_t offset, size_t bytes, char* to) {
      if (to != nullptr) std::memcpy(to, box_address(box, offset, map.swizzle), bytes);
    });
  });
  if (is_eager()) finish_group(group);
  group.is_read = false;
  group.site = site;
}

void bulk_commit() {
  AsyncQueue& queue = queue_of(current->bulk_copies);
  queue.committed.push_back(std::exchange(queue.open, {}));
}

void bulk_wait(int pending, bool read_only) {
  AsyncQueue& queue = queue_of(current->bulk_copies);
  const size_t done =
      queue.committed.size() - std::min(queue.committed.size(), static_cast<size_t>(pending));
  for (size_t i = 0; i < done; ++i) {
    AsyncQueue::Group& group = queue.committed[i];
    finish_group(group);
    group.is_read = true;
    if (!state().watches()) continue;
    const auto learn_of = [](const std::vector<std::pair<int, Clock>>& events) {
      for (const auto& [agent, clock] : events) {
        current->known = with_event(current->known, agent, clock);
      }
    };
    learn_of(group.reads);
    if (!read_only) learn_of(group.writes);
  }
  if (!read_only) queue.committed.erase(queue.committed.begin(), queue.committed.begin() + done);
}

void finish_copies(Thread& thread) {
  if (thread.copies) {
    for (AsyncQueue::Group& group : thread.copies->committed) finish_group(group);
    finish_group(thread.copies->open);
  }
  if (!thread.bulk_copies) return;
  AsyncQueue& queue = *thread.bulk_copies;
  queue.committed.push_back(std::move(queue.open));
  for (AsyncQueue::Group& group : queue.committed) {
    if (!group.is_read && !(group.reads.empty() && group.work.empty())) {
      report(fmt::format("store {}", to_string(group.site)),
             fmt::format("{} exits while the bulk store of {} may still read its shared memory: "
                         "tma_store_wait is missing",
                         describe(thread), to_string(group.site)));
    }
    finish_group(group);
  }
}

void finish_shared(Block& block) {
  const auto tell = [&](std::string_view operation, const std::string& place) {
    report(fmt::format("exit {}", place),
           fmt::format("block {} of the cluster exits before {} on its shared memory is over{}",
                       block.rank, operation, place));
  };
  for (const auto& [address, barrier] : state().mbarriers) {
    const bool is_over = barrier.transactions == 0 && barrier.copies.empty();
    if (!is_over && &block_of(address) == &block) tell("a copy that an mbarrier counts", "");
  }
  const KnowledgePtr known = block.exits.take();
  for (const RemoteAccess& access : block.remote) {
    if (known->seen[access.agent] < access.clock) {
      tell(access.operation, fmt::format(", of {}", to_string(access.site)));
    }
  }
}

// Clusters.

void open_complete_cluster_barrier() {
  State& s = state();
  Barrier& barrier = s.cluster_barrier;
  if (barrier.arrived == 0 || barrier.arrived < s.live) return;
  barrier.arrived = 0;
  ++s.cluster_phases;
  s.cluster_known = barrier.release.take();
  make_ready(barrier.waiting);
}

void cluster_arrive() {
  State& s = state();
  release_past(s.cluster_barrier.release);
  current->cluster_phase = s.cluster_phases;
  ++s.cluster_barrier.arrived;
  open_complete_cluster_barrier();
}

void cluster_wait(const Site& site) {
  State& s = state();
  if (current->cluster_phase == s.cluster_phases) {
    s.cluster_barrier.waiting.push_back(current);
    wait("barrier.cluster.wait", site);
  }
  learn(*current, s.cluster_known);
}

void* cluster_address(const void* address, unsigned rank, const Site& site) {
  State& s = state();
  const size_t offset = s.workspace.offset_of(address);
  if (offset >= Workspace::kArenasBytes || rank >= static_cast<unsigned>(s.n_blocks)) {
    fail_kernel(site, "mapa: block {} of a cluster of {}", rank, s.n_blocks);
  }
  return s.workspace.arena(static_cast<int>(rank)) + offset % kArenaBytes;
}

unsigned cluster_rank() { return static_cast<unsigned>(current->block->rank); }

}  // namespace weft::simt
