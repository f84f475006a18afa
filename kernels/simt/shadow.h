// What is known of every 4 bytes of memory that a launch touched: who read and wrote which of them,
// when and where. Accesses that conflict and that nothing orders are races.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/simt/knowledge.h"
#include "kernels/simt/symbol.h"

namespace weft::simt {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

/// Bytes `mask` of a granule, touched by an agent at a clock.
struct Record {
  Clock clock = 0;
  Place place = 0;
  uint16_t agent = 0;
  uint8_t mask = 0;  // 0: empty, and so are those behind it
  Access access = Access::kRead;
};

inline constexpr size_t kGranuleBytes = 4;

/// Holds a few records: all writes that later accesses must be ordered after, and of concurrent
/// readers as many as there is room for, chosen at random. A race with one of many readers is
/// therefore seen in some granules of the array that they read, not in all.
struct alignas(64) Granule {  // a line of the host's cache
  std::array<Record, 5> records;
};

/// One access as it is being checked.
struct Event {
  Clock clock;
  Place place;
  uint16_t agent;
  Access access;
  const Knowledge* known;
  int issuer = -1;  // of a copy: the thread whose whole past it comes after
};

/// Tells whether a record happened before an event.
struct Timeline {
  Clock launch_start = 0;         // clocks up to here belong to earlier launches
  Clock cluster_start = 0;        // clocks up to here belong to clusters that ended
  bool forgets_clusters = false;  // shared memory: what earlier clusters did is gone
  const std::vector<Clock>* cluster_starts = nullptr;  // of the launch, ascending

  /// Whether the record is of something that has ended: everything comes after it.
  bool is_over(const Record& record) const {
    return record.clock <= (forgets_clusters ? cluster_start : launch_start);
  }
  /// For records of what goes on.
  bool is_ordered(const Record& record, const Event& event) const {
    if (record.clock > cluster_start) {
      return record.agent == event.agent || record.agent == event.issuer ||
             event.known->seen[record.agent] >= record.clock;
    }
    return is_learnt(record, event);
  }

 private:
  /// Whether the event's thread has learnt of the record's, of an earlier cluster.
  bool is_learnt(const Record& record, const Event& event) const;
};

/// Enters the event for bytes `mask`; calls race(record) for each record that it races with.
/// random() gives 32 random bits, where there is a choice. Tells whether the granule is now full of
/// concurrent readers, unless it is left as it was.
template <class Random, class OnRace>
std::optional<bool> enter(Granule& granule, uint8_t mask, const Event& event,
                          const Timeline& timeline, Random&& random, OnRace&& race) {
  constexpr uint8_t kSpent = 0x80;  // room for a new record; those behind it still count
  const bool writes = event.access != Access::kRead;
  Record* room = nullptr;
  for (Record& record : granule.records) {
    // The same again before the agent has released anything: whoever raced with it was told.
    if (record.clock == event.clock && record.agent == event.agent &&
        record.access == event.access && (mask & ~record.mask) == 0 && record.mask != kSpent) {
      return {};
    }
    if (record.mask == kSpent || timeline.is_over(record)) {
      if (room == nullptr) room = &record;
      if (record.mask == 0) break;
      continue;
    }
    if ((record.mask & mask) == 0) continue;
    const bool is_ordered = timeline.is_ordered(record, event);
    if (!is_ordered && (writes || record.access != Access::kRead) &&
        !(event.access == Access::kAtomic && record.access == Access::kAtomic)) {
      race(record);
    }
    // What comes after the new event comes after the old one, too. A read does not stand for the
    // write before it, since a later read may lie beside it.
    if (is_ordered && (writes || record.access == Access::kRead)) {
      record.mask &= static_cast<uint8_t>(~mask);
      if (record.mask == 0) {
        record.mask = kSpent;
        if (room == nullptr) room = &record;
      }
    }
  }
  const bool is_full = room == nullptr;
  if (is_full) {
    const size_t first = random() % granule.records.size();
    room = &granule.records[first];
    for (size_t i = 0; i < granule.records.size(); ++i) {
      Record& record = granule.records[(first + i) % granule.records.size()];
      if (record.access != Access::kRead) continue;
      room = &record;
      break;
    }
  }
  *room = {event.clock, event.place, event.agent, mask, event.access};
  return is_full && std::ranges::all_of(granule.records, [](const Record& record) {
           return record.access == Access::kRead;
         });
}

/// The granules of global memory, made as they are touched.
class GlobalShadow {
 public:
  struct Place {
    Granule& granule;
    bool& has_readers_alone;  // as many as it has room for
  };
  Place at(uintptr_t address, Clock launch_start) {
    const uintptr_t number = address / kPageBytes;
    Recent& recent = recent_[number % std::size(recent_)];
    if (number != recent.number) {
      std::unique_ptr<Page>& entry = pages_[number];
      if (!entry) entry = std::make_unique<Page>();
      recent = {number, entry.get()};
    }
    Page& page = *recent.page;
    if (page.launch_start != launch_start) {
      page.launch_start = launch_start;
      page.has_readers_alone = {};
    }
    const size_t place = address % kPageBytes / kGranuleBytes;
    return {page.granules[place], page.has_readers_alone[place]};
  }
  size_t pages() const { return pages_.size(); }
  void clear() {
    pages_.clear();
    std::ranges::fill(recent_, Recent{});
  }

 private:
  static constexpr size_t kPageBytes = 4096;
  struct Page {
    std::array<Granule, kPageBytes / kGranuleBytes> granules;
    std::array<bool, kPageBytes / kGranuleBytes> has_readers_alone{};
    Clock launch_start = 0;  // of the launch that these were noted in
  };

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  /// Pages met of late, by the last bits of their numbers.
  struct Recent {
    uintptr_t number = ~uintptr_t{0};
    Page* page = nullptr;
  };
  Recent recent_[64];
};

}  // namespace weft::simt
