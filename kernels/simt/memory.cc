#include "kernels/simt/memory.h"

#include <algorithm>
#include <cstring>

#include "core/emulated.h"
#include "kernels/simt/watch.h"

// The program's image: its code, constants and static variables.
extern "C" const char __executable_start;
extern "C" const char _end;

namespace weft::simt {
namespace {

/// Live memory that kernels may touch.
struct Region {
  uintptr_t begin = 0, end = 0;
  bool* is_written = nullptr;  // for each byte; null: all is
};
std::map<uintptr_t, Region>& device_views() {
  static std::map<uintptr_t, Region> views;
  return views;
}

/// The region that an address belongs to; empty when none does.
Region find_region(uintptr_t address) {
  const auto& views = device_views();
  auto next = views.upper_bound(address);
  if (next != views.begin()) {
    --next;
    if (address < next->second.end) return next->second;
  }
  const auto block = emulated::block_of(reinterpret_cast<const void*>(address));
  if (block && block->device == runtime::current_device()) {
    const auto begin = reinterpret_cast<uintptr_t>(block->begin);
    return {begin, begin + block->bytes, block->is_written};
  }
  return {};
}

/// The last few regions that were met.
struct RegionCache {
  Region regions[4];
  size_t next = 0;

  const Region* find(uintptr_t address, size_t bytes) const {
    for (const Region& region : regions) {
      if (address >= region.begin && address + bytes <= region.end) return &region;
    }
    return nullptr;
  }
  void add(const Region& region) { regions[next++ % std::size(regions)] = region; }
};
RegionCache recent_regions;

/// Where an address lies that is in no region.
std::string describe_outside(uintptr_t address) {
  if (const auto block = emulated::block_of(reinterpret_cast<const void*>(address))) {
    return fmt::format("in memory of cuda:{}, by a kernel on cuda:{}", block->device,
                       runtime::current_device());
  }
  constexpr uintptr_t kNear = 4096;
  const auto& views = device_views();
  auto next = views.lower_bound(address);
  if (next != views.end() && next->second.begin - address <= kNear) {
    return fmt::format("before the start of device memory: {} bytes before a block",
                       next->second.begin - address);
  }
  if (next != views.begin() && address - (--next)->second.end <= kNear) {
    return fmt::format("beyond the end of device memory: {} bytes after a block of {}",
                       address - next->second.end, next->second.end - next->second.begin);
  }
  for (uintptr_t distance = 1; distance <= kNear; distance *= 2) {
    if (const auto block = emulated::block_of(reinterpret_cast<const void*>(address - distance))) {
      const auto end = reinterpret_cast<uintptr_t>(block->begin) + block->bytes;
      return fmt::format("beyond the end of device memory: {} bytes after a block of {}",
                         address - end, block->bytes);
    }
    if (const auto block = emulated::block_of(reinterpret_cast<const void*>(address + distance))) {
      return fmt::format("before the start of device memory: {} bytes before a block of {}",
                         reinterpret_cast<uintptr_t>(block->begin) - address, block->bytes);
    }
  }
  return fmt::format("at {:#x}, which is not device memory", address);
}

constexpr const char* kNames[] = {"read", "write", "atomic"};  // by Access

/// Who accesses and on what grounds.
struct Visitor {
  Event event;
  Thread* thread;  // the issuer, for agents
  bool is_hook;    // an ordinary access of the current thread
};

const char* name(const Visitor& visitor) { return kNames[static_cast<int>(visitor.event.access)]; }

[[noreturn]] void fail_access(const Visitor& visitor, const std::string& message) {
  fail_kernel(message, to_string(visitor.event.place), *visitor.thread);
}

std::string where(const Visitor& visitor) {
  return fmt::format("{} by {} at {}", name(visitor), describe_agent(visitor.event.agent),
                     to_string(visitor.event.place));
}

/// Whether all of these are that one; by words, as most accesses are of 4 bytes or more.
template <class T>
bool are_all(std::span<T> states, T wanted) {
  static_assert(sizeof(T) == 1);
  constexpr uint64_t kEach = 0x0101010101010101;
  const uint64_t pattern = kEach * static_cast<uint64_t>(wanted);
  size_t at = 0;
  for (; at + 8 <= states.size(); at += 8) {
    if (std::memcmp(&states[at], &pattern, 8) != 0) return false;
  }
  if (states.size() - at == 4) return std::memcmp(&states[at], &pattern, 4) == 0;
  for (; at < states.size(); ++at) {
    if (states[at] != wanted) return false;
  }
  return true;
}

/// Looks for bytes that nobody has written before a read of them, and notes those of a write.
template <class T, class Describe>
void check_written(const Visitor& visitor, std::span<T> states, T unwritten, T written,
                   Describe&& describe) {
  if (are_all(states, written)) return;
  if (visitor.event.access != Access::kWrite &&
      std::ranges::find(states, unwritten) != states.end()) {
    report(fmt::format("uninitialised {}", visitor.event.place),
           fmt::format("uninitialised {}", describe()));
  }
  if (visitor.event.access != Access::kRead) std::ranges::fill(states, written);
}

/// Calls f(granule address, mask) for the granules of a range.
template <class F>
void for_each_granule(uintptr_t begin, size_t bytes, F&& f) {
  const uintptr_t end = begin + bytes;
  for (uintptr_t at = begin; at < end;) {
    const uintptr_t granule = at / kGranuleBytes * kGranuleBytes;
    const uintptr_t stop = std::min(end, granule + kGranuleBytes);
    const auto mask = static_cast<uint8_t>(((1u << (stop - at)) - 1) << (at - granule));
    f(granule, mask);
    at = stop;
  }
}

/// Enters the access into a granule and reports races; returns what enter() does.
std::optional<bool> enter_granule(const Visitor& visitor, const char* space, Granule& granule,
                                  uint8_t mask, bool forgets_clusters) {
  State& s = state();
  const Timeline timeline{s.launch_start, s.cluster_start, forgets_clusters, &s.cluster_starts};
  const auto random = [&] { return static_cast<uint32_t>(s.next_random()); };
  return enter(granule, mask, visitor.event, timeline, random, [&](const Record& record) {
    const bool is_same_cluster = record.clock > s.cluster_start;
    report(fmt::format("race {} {}", visitor.event.place, record.place),
           fmt::format("data race in {} memory: {}, and {} by {} at {}, with nothing that orders "
                       "them",
                       space, where(visitor), kNames[static_cast<int>(record.access)],
                       is_same_cluster ? describe_agent(record.agent) : "another block",
                       to_string(record.place)));
  });
}

void visit_shared(const Visitor& visitor, size_t offset, size_t bytes) {
  State& s = state();
  ByteState* const begin = &s.bytes[offset];
  const size_t in_arena = offset % kArenaBytes;
  const std::span states(begin, std::min(bytes, kArenaBytes - in_arena));
  if (states.size() < bytes || (!are_all(states, ByteState::kWritten) &&
                                std::ranges::find(states, ByteState::kOutside) != states.end())) {
    fail_access(visitor, fmt::format("{} of {} bytes outside shared memory, {} bytes after its "
                                     "start (the block has {} bytes of dynamic shared memory)",
                                     name(visitor), bytes, in_arena,
                                     s.blocks[offset / kArenaBytes].dynamic_bytes));
  }
  check_written(visitor, states, ByteState::kUnwritten, ByteState::kWritten, [&] {
    return fmt::format("shared memory: {}, {} bytes after its start", where(visitor), in_arena);
  });
  for_each_granule(offset, bytes, [&](uintptr_t granule, uint8_t mask) {
    enter_granule(visitor, "shared", s.granules[granule / kGranuleBytes], mask, true);
  });
}

void visit_global(const Visitor& visitor, uintptr_t address, size_t bytes) {
  Region region;
  if (const Region* const known = recent_regions.find(address, bytes)) {
    region = *known;
  } else {
    // Constants, and the emulator's own variables seen through threadIdx and its like.
    const auto image_begin = reinterpret_cast<uintptr_t>(&__executable_start);
    const auto image_end = reinterpret_cast<uintptr_t>(&_end);
    if (visitor.is_hook && address >= image_begin && address < image_end) return;
    const auto parameters = reinterpret_cast<uintptr_t>(state().parameters.data());
    if (address - parameters < state().parameters.size_bytes()) {
      if (visitor.event.access == Access::kRead) return;
      fail_access(visitor,
                  fmt::format("{} of {} bytes of the kernel's parameters, which are constant",
                              name(visitor), bytes));
    }
    region = find_region(address);
    if (address + bytes > region.end) {
      fail_access(
          visitor,
          fmt::format("{} of {} bytes {}", name(visitor), bytes,
                      region.end == 0
                          ? describe_outside(address)
                          : fmt::format("beyond the end of device memory: {} bytes into a block "
                                        "of {}",
                                        address - region.begin, region.end - region.begin)));
    }
    recent_regions.add(region);
  }
  if (region.is_written) {
    const std::span written(region.is_written + (address - region.begin), bytes);
    check_written(visitor, written, false, true, [&] {
      return fmt::format("device memory: {}, {} bytes into a block of {}", where(visitor),
                         address - region.begin, region.end - region.begin);
    });
  }
  State& s = state();
  for_each_granule(address, bytes, [&](uintptr_t at, uint8_t mask) {
    const auto [granule, has_readers_alone] = s.global.at(at, s.launch_start);
    // Most accesses read what a whole grid reads and nobody writes: one in sixteen is noted.
    constexpr uint64_t kNotedOneIn = 16;
    if (has_readers_alone && visitor.event.access == Access::kRead &&
        s.next_random() % kNotedOneIn != 0) {
      return;
    }
    has_readers_alone =
        enter_granule(visitor, "global", granule, mask, false).value_or(has_readers_alone);
  });
}

/// Reports generic writes that no proxy fence has shown to the asynchronous agent that reads.
void check_proxy_fence(const AsyncAgent& agent, const void* address, size_t bytes) {
  State& s = state();
  const size_t offset = s.workspace.offset_of(address);
  for_each_granule(offset, bytes, [&](uintptr_t granule, uint8_t mask) {
    for (const Record& record : s.granules[granule / kGranuleBytes].records) {
      const bool is_generic = record.agent < 2 * s.n_threads;
      if ((record.mask & mask) == 0 || record.mask > 0xf || record.access == Access::kRead ||
          !is_generic || record.clock <= s.cluster_start ||
          agent.known->fenced[record.agent] >= record.clock) {
        continue;
      }
      report(fmt::format("proxy {} {}", place_of(agent.site), record.place),
             fmt::format("missing fence.proxy.async: {} at {} reads through the asynchronous proxy "
                         "what {} wrote at {} through the generic one",
                         describe_agent(agent.agent), to_string(agent.site),
                         describe_agent(record.agent), to_string(record.place)));
    }
  });
}

/// `alignment`: a power of two.
void visit(const Visitor& visitor, const void* pointer, size_t bytes, size_t alignment) {
  if (bytes == 0) return;
  State& s = state();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const size_t offset = s.workspace.offset_of(pointer);
  if (offset >= Workspace::kArenasBytes && offset < Workspace::kBytes) return;
  if ((address & (alignment - 1)) != 0) {
    fail_access(visitor,
                fmt::format("misaligned {} of {} bytes at {:#x}", name(visitor), bytes, address));
  }
  if (offset < Workspace::kArenasBytes) {
    visit_shared(visitor, offset, bytes);
  } else {
    visit_global(visitor, address, bytes);
  }
  if (s.options.traffic) count_traffic(*visitor.thread, visitor.event, pointer, bytes);
}

}  // namespace

bool Timeline::is_learnt(const Record& record, const Event& event) const {
  if (!event.known->earlier) return false;
  const auto next = std::lower_bound(cluster_starts->begin(), cluster_starts->end(), record.clock);
  const auto cluster = static_cast<uint32_t>(next - cluster_starts->begin()) - 1;
  const auto known = event.known->earlier->find(cluster);
  return known != event.known->earlier->end() && known->second->seen[record.agent] >= record.clock;
}

void on_access(const void* address, size_t bytes, size_t alignment, Access access, const void* pc) {
  // threadIdx and its like look at this variable first.
  if (address == &current || !state().watches()) return;
  Thread& self = *current;
  // Most accesses are to the thread's own stack: its registers and local arrays.
  const size_t offset = state().workspace.offset_of(address);
  if (offset >= Workspace::kArenasBytes && offset < Workspace::kBytes) {
    if (!self.in_flight.empty()) check_registers(self, address, bytes, place_of(pc));
    return;
  }
  visit({{self.clock, place_of(pc), static_cast<uint16_t>(self.agent), access, self.known.get()},
         &self,
         true},
        address, bytes, alignment);
}

void access_memory(Thread& thread, const void* address, size_t bytes, size_t alignment,
                   Access access, const Site& site) {
  if (!state().watches()) return;
  visit({{thread.clock, place_of(site), static_cast<uint16_t>(thread.agent), access,
          thread.known.get()},
         &thread,
         false},
        address, bytes, alignment);
}

void access_memory(const AsyncAgent& agent, const void* address, size_t bytes, size_t alignment,
                   Access access) {
  if (!state().watches()) return;
  if (agent.is_async_proxy && access == Access::kRead && is_shared(address)) {
    check_proxy_fence(agent, address, bytes);
  }
  visit({{agent.clock, place_of(agent.site), static_cast<uint16_t>(agent.agent), access,
          agent.known.get(), agent.follows_issuer ? agent.issuer->agent : -1},
         agent.issuer,
         false},
        address, bytes, alignment);
}

bool is_shared(const void* address) {
  return state().workspace.offset_of(address) < Workspace::kArenasBytes;
}

void begin_watching_cluster() {
  State& s = state();
  if (!s.watches()) return;
  const size_t arenas = std::max(s.bytes.size(), s.n_blocks * kArenaBytes);
  s.bytes.resize(arenas);
  s.granules.resize(arenas / kGranuleBytes);
  for (int b = 0; b < s.n_blocks; ++b) {
    std::fill_n(s.bytes.begin() + b * kArenaBytes, kArenaBytes, ByteState::kOutside);
    open_shared(s.blocks[b], 0, s.blocks[b].dynamic_bytes);
  }
  recent_regions = {};
}

void open_shared(const Block& block, size_t offset, size_t bytes) {
  State& s = state();
  if (!s.watches()) return;
  std::fill_n(s.bytes.begin() + block.rank * kArenaBytes + offset, bytes, ByteState::kUnwritten);
}

DeviceView::DeviceView(const void* begin, size_t bytes) : begin_(begin) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const std::lock_guard lock(state().mutex);
  device_views()[address] = {address, address + bytes};
}

DeviceView::~DeviceView() {
  const std::lock_guard lock(state().mutex);
  device_views().erase(reinterpret_cast<uintptr_t>(begin_));
}

}  // namespace weft::simt
