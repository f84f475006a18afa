#include "kernels/simt/collectives.h"

#include <algorithm>
#include <bit>

#include "kernels/simt/watch.h"

namespace weft::simt {
namespace {

// What a lane passes besides its operand travels in `out`, where its result will lie.
Thread& operands(uint64_t in, uint64_t out = 0) {
  current->in = in;
  current->out = out;
  return *current;
}

template <class F>
void for_each_lane(Warp& warp, uint32_t mask, F&& f) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) f(warp.lanes[std::countr_zero(rest)]);
}

}  // namespace

uint64_t shuffle(uint32_t mask, uint64_t value, int source, const char* operation,
                 const Site& site) {
  Thread& self = operands(value, static_cast<uint64_t>(source));
  meet(mask, operation, site, [](Warp& warp, uint32_t mask) {
    for_each_lane(warp, mask, [&](Thread& lane) {
      const auto from = static_cast<int>(lane.out);
      lane.out = from >= 0 && (mask >> from & 1u) ? warp.lanes[from].in : lane.in;
    });
  });
  return self.out;
}

uint32_t match_any(uint32_t mask, uint64_t value, const Site& site) {
  Thread& self = operands(value);
  meet(mask, "match.sync", site, [](Warp& warp, uint32_t mask) {
    for_each_lane(warp, mask, [&](Thread& lane) {
      lane.out = 0;
      for_each_lane(warp, mask, [&](Thread& other) {
        if (other.in == lane.in) lane.out |= 1u << other.lane;
      });
    });
  });
  return static_cast<uint32_t>(self.out);
}

uint32_t reduce(uint32_t mask, uint32_t value, Join join, const char* operation, const Site& site) {
  Thread& self = operands(value, reinterpret_cast<uint64_t>(join));
  meet(mask, operation, site, [](Warp& warp, uint32_t mask) {
    const Thread& first = warp.lanes[std::countr_zero(mask)];
    const auto join = reinterpret_cast<Join>(first.out);
    auto result = static_cast<uint32_t>(first.in);
    for_each_lane(warp, mask & (mask - 1),
                  [&](Thread& lane) { result = join(result, static_cast<uint32_t>(lane.in)); });
    for_each_lane(warp, mask, [&](Thread& lane) { lane.out = result; });
  });
  return static_cast<uint32_t>(self.out);
}

uint32_t ballot(uint32_t mask, bool predicate, const char* operation, const Site& site) {
  const uint32_t vote = predicate ? 1u << current->lane : 0;
  return reduce(
      mask, vote, [](uint32_t x, uint32_t y) { return x | y; }, operation, site);
}

void sync_warp(uint32_t mask, const Site& site) {
  meet(mask, "__syncwarp", site, [](Warp& warp, uint32_t mask) {
    if (!state().watches()) return;
    Release release;
    for_each_lane(warp, mask, [&](Thread& lane) {
      release.add(lane.known, lane.agent, lane.clock);
      tick(lane);
    });
    const KnowledgePtr known = release.take();
    for_each_lane(warp, mask, [&](Thread& lane) { learn(lane, known); });
  });
}

int sync_count(bool predicate, const Site& site) {
  const std::span<const Thread> threads = current->block->threads;
  // Nobody votes again before all have left the first barrier, nor reads before all have voted.
  current->in = predicate;
  barrier_sync(0, 0, site);
  const auto count = std::ranges::count_if(
      threads, [](const Thread& thread) { return !thread.exited && thread.in != 0; });
  barrier_sync(0, 0, site);
  return static_cast<int>(count);
}

void fence(bool for_device) {
  State& s = state();
  if (!s.watches()) return;
  Thread& self = *current;
  const auto cluster = static_cast<uint32_t>(s.cluster_starts.size() - 1);
  for (const auto& [from, known] : self.acquired) {
    if (from == cluster) {
      learn(self, known);
    } else if (for_device) {
      const auto& mine = self.known->earlier;
      auto earlier = std::make_shared<KnowledgeByCluster>(mine ? *mine : KnowledgeByCluster());
      join_into((*earlier)[from], known);
      auto next = std::make_shared<Knowledge>(*self.known);
      next->earlier = std::move(earlier);
      self.known = std::move(next);
    }
  }
  self.acquired.clear();
  self.fenced = with_event(self.known, self.agent, self.clock);
  if (for_device) self.fenced_device = self.fenced;
  self.fence_clock = self.clock;
  tick(self);
}

void atomic_access(const volatile void* address, size_t bytes, const Site& site) {
  State& s = state();
  if (!s.watches()) return;
  Thread& self = *current;
  const void* const plain = const_cast<const void*>(address);
  // Who has acquired through this location has seen the atomic itself, not only what the fence
  // before it released: it counts as of that fence.
  const Clock clock = self.clock;
  if (self.fence_clock != 0) self.clock = self.fence_clock;
  access_memory(self, plain, bytes, bytes, Access::kAtomic, site);
  self.clock = clock;
  KnowledgeByCluster& released = s.released[plain];
  for (const auto& [from, known] : released) join_into(self.acquired[from], known);
  const KnowledgePtr& fenced = is_shared(plain) ? self.fenced : self.fenced_device;
  if (!fenced) return;
  join_into(released[static_cast<uint32_t>(s.cluster_starts.size() - 1)], fenced);
  if (fenced->earlier) {
    for (const auto& [from, known] : *fenced->earlier) join_into(released[from], known);
  }
}

}  // namespace weft::simt
