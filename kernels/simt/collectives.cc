#include "kernels/simt/collectives.h"

#include <bit>

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
    case Reduction::add:
      return x + y;
    case Reduction::min_signed:
      return a < b ? x : y;
    case Reduction::max_signed:
      return a > b ? x : y;
    case Reduction::min_unsigned:
      return x < y ? x : y;
    case Reduction::max_unsigned:
      return x > y ? x : y;
    case Reduction::bit_and:
      return x & y;
    case Reduction::bit_or:
      return x | y;
    case Reduction::bit_xor:
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
      run_reduction<Reduction::add>,          run_reduction<Reduction::min_signed>,
      run_reduction<Reduction::max_signed>,   run_reduction<Reduction::min_unsigned>,
      run_reduction<Reduction::max_unsigned>, run_reduction<Reduction::bit_and>,
      run_reduction<Reduction::bit_or>,       run_reduction<Reduction::bit_xor>};
  static constexpr const char* kNames[] = {
      "redux.sync.add",     "redux.sync.min.s32", "redux.sync.max.s32", "redux.sync.min.u32",
      "redux.sync.max.u32", "redux.sync.and",     "redux.sync.or",      "redux.sync.xor"};
  Thread& self = operands(value);
  meet(mask, kNames[static_cast<int>(reduction)], site, kRun[static_cast<int>(reduction)]);
  return static_cast<uint32_t>(self.out);
}

void sync_warp(uint32_t mask, const Site& site) {
  meet(mask, "__syncwarp", site, [](Warp&, uint32_t) {});
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
    case Vote::count:
      return count;
    case Vote::all:
      return count == voters;
    case Vote::any:
      return count > 0;
  }
  return 0;
}

void fence(Scope, const Site&) {}

void atomic_access(void*, size_t, const Site&) {}

}  // namespace weft::simt
