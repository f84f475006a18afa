#include "kernels/simt/collectives.h"

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

uint32_t combine(Reduction reduction, uint32_t x, uint32_t y) {
  const auto a = static_cast<int32_t>(x), b = static_cast<int32_t>(y);
  switch (reduction) {
    case Reduction::kAdd:
      return x + y;
    case Reduction::kMinSigned:
      return a < b ? x : y;
    case Reduction::kMaxSigned:
      return a > b ? x : y;
    case Reduction::kMinUnsigned:
      return x < y ? x : y;
    case Reduction::kMaxUnsigned:
      return x > y ? x : y;
    case Reduction::kBitAnd:
      return x & y;
    case Reduction::kBitOr:
      return x | y;
    case Reduction::kBitXor:
      return x ^ y;
  }
  return 0;
}

template <Reduction reduction>
void run_reduction(Warp& warp, uint32_t mask) {
  auto result = static_cast<uint32_t>(warp.lanes[std::countr_zero(mask)].in);
  for_each_lane(warp, mask & (mask - 1), [&](Thread& lane) {
    result = combine(reduction, result, static_cast<uint32_t>(lane.in));
  });
  for_each_lane(warp, mask, [&](Thread& lane) { lane.out = result; });
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

uint32_t ballot(uint32_t mask, bool predicate, const char* operation, const Site& site) {
  Thread& self = operands(predicate);
  meet(mask, operation, site, [](Warp& warp, uint32_t mask) {
    uint32_t votes = 0;
    for_each_lane(warp, mask, [&](Thread& lane) {
      if (lane.in != 0) votes |= 1u << lane.lane;
    });
    for_each_lane(warp, mask, [&](Thread& lane) { lane.out = votes; });
  });
  return static_cast<uint32_t>(self.out);
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

uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, const Site& site) {
  static constexpr WarpFunction kRun[] = {
      run_reduction<Reduction::kAdd>,         run_reduction<Reduction::kMinSigned>,
      run_reduction<Reduction::kMaxSigned>,   run_reduction<Reduction::kMinUnsigned>,
      run_reduction<Reduction::kMaxUnsigned>, run_reduction<Reduction::kBitAnd>,
      run_reduction<Reduction::kBitOr>,       run_reduction<Reduction::kBitXor>};
  static constexpr const char* kNames[] = {
      "redux.sync.add",     "redux.sync.min.s32", "redux.sync.max.s32", "redux.sync.min.u32",
      "redux.sync.max.u32", "redux.sync.and",     "redux.sync.or",      "redux.sync.xor"};
  Thread& self = operands(value);
  meet(mask, kNames[static_cast<int>(reduction)], site, kRun[static_cast<int>(reduction)]);
  return static_cast<uint32_t>(self.out);
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

int sync_vote(Vote vote, bool predicate, const Site& site) {
  Block& block = *current->block;
  // Nobody votes again before all have left the first barrier, nor reads before all have voted.
  current->in = predicate;
  barrier_sync(0, 0, site);
  int count = 0, voters = 0;
  for (const Thread& thread : block.threads) {
    if (thread.exited) continue;
    ++voters;
    count += thread.in != 0;
  }
  barrier_sync(0, 0, site);
  switch (vote) {
    case Vote::kCount:
      return count;
    case Vote::kAll:
      return count == voters;
    case Vote::kAny:
      return count > 0;
  }
  return 0;
}

void fence(Scope scope, const Site&) {
  State& s = state();
  if (!s.watches()) return;
  Thread& self = *current;
  const auto cluster = static_cast<uint32_t>(s.cluster_starts.size() - 1);
  for (const auto& [from, known] : self.acquired) {
    if (from == cluster) {
      learn(self, known);
    } else if (scope != Scope::kBlock) {
      auto earlier =
          self.known->earlier ? *self.known->earlier : std::map<uint32_t, KnowledgePtr>();
      KnowledgePtr& mine = earlier[from];
      mine = mine ? join(mine, known) : known;
      auto next = std::make_shared<Knowledge>(*self.known);
      next->earlier = std::make_shared<std::map<uint32_t, KnowledgePtr>>(std::move(earlier));
      self.known = std::move(next);
    }
  }
  self.acquired.clear();
  self.fenced = with_event(self.known, self.agent, self.clock);
  if (scope != Scope::kBlock) self.fenced_device = self.fenced;
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
  const KnowledgePtr& fenced = is_shared(plain) ? self.fenced : self.fenced_device;
  const auto cluster = static_cast<uint32_t>(s.cluster_starts.size() - 1);
  auto& released = s.released[plain];
  for (const auto& [from, known] : released) {
    KnowledgePtr& mine = self.acquired[from];
    mine = mine ? join(mine, known) : known;
  }
  if (!fenced) return;
  const auto release = [&](uint32_t from, const KnowledgePtr& known) {
    KnowledgePtr& theirs = released[from];
    theirs = theirs ? join(theirs, known) : known;
  };
  release(cluster, fenced);
  if (fenced->earlier) {
    for (const auto& [from, known] : *fenced->earlier) release(from, known);
  }
}

}  // namespace weft::simt
