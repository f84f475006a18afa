// Bank conflicts and sectors: how the lanes of a warp met at each source access.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "kernels/simt/watch.h"

namespace weft::simt {
namespace {

constexpr size_t kBankBytes = 4, kBanks = 32, kSectorBytes = 32;
constexpr size_t kPassBytes = kBankBytes * kBanks;

/// An access of a lane.
struct LaneAccess {
  uintptr_t address;
  size_t bytes;

  /// Calls f for the multiples of `unit` bytes that it touches, counted in units.
  template <class F>
  void for_each_unit(size_t unit, F&& f) const {
    for (uintptr_t i = address / unit; i <= (address + bytes - 1) / unit; ++i) f(i);
  }
};
/// The k-th execution of an access by the lanes of a warp.
using Execution = std::vector<LaneAccess>;

struct Source {
  Place place;
  Access access;
  bool is_shared;
  auto operator<=>(const Source&) const = default;
};

struct WarpSource {
  std::vector<Execution> executions;
  size_t count[kWarpSize] = {};
};

std::map<std::pair<const Warp*, Source>, WarpSource> open_sources;
std::map<Source, Traffic> totals;

/// Passes over the banks: words of one bank that differ take turns; a word read twice does not.
/// Wide accesses go half or quarter warp by half or quarter warp, so that a pass moves 128 bytes;
/// a part whose words an earlier one has read comes along with it.
uint64_t shared_passes(const Execution& execution) {
  const size_t bytes = execution.front().bytes;
  const size_t group = std::max<size_t>(1, kWarpSize * kBankBytes / std::max(bytes, kBankBytes));
  uint64_t passes = 0;
  std::set<uintptr_t> served;
  for (size_t begin = 0; begin < execution.size(); begin += group) {
    std::set<uintptr_t> words[kBanks];
    const size_t known = served.size();
    for (size_t i = begin; i < std::min(begin + group, execution.size()); ++i) {
      execution[i].for_each_unit(kBankBytes, [&](uintptr_t word) {
        words[word % kBanks].insert(word);
        served.insert(word);
      });
    }
    if (served.size() == known) continue;
    passes += std::ranges::max(words, {}, [](const auto& bank) { return bank.size(); }).size();
  }
  return passes;
}

/// How many units of memory the lanes touch together.
size_t distinct_units(const Execution& execution, size_t unit) {
  std::set<uintptr_t> units;
  for (const LaneAccess& lane : execution) {
    lane.for_each_unit(unit, [&](uintptr_t i) { units.insert(i); });
  }
  return units.size();
}

void fold(const Source& source, const Execution& execution) {
  Traffic& total = totals[source];
  ++total.executions;
  total.transactions +=
      source.is_shared ? shared_passes(execution) : distinct_units(execution, kSectorBytes);
  const size_t unit = source.is_shared ? kPassBytes : kSectorBytes;
  total.ideal += (distinct_units(execution, 1) + unit - 1) / unit;
}

}  // namespace

void count_traffic(const Thread& thread, const Event& event, const void* address, size_t bytes) {
  if (event.agent >= state().n_threads) return;
  const Source source{event.place, event.access, is_shared(address)};
  WarpSource& warp = open_sources[{thread.warp, source}];
  const size_t k = warp.count[thread.lane]++;
  if (warp.executions.size() <= k) warp.executions.resize(k + 1);
  warp.executions[k].push_back({reinterpret_cast<uintptr_t>(address), bytes});
}

void fold_traffic() {
  for (const auto& [key, warp] : open_sources) {
    for (const Execution& execution : warp.executions) fold(key.second, execution);
  }
  open_sources.clear();
}

std::vector<Traffic> take_traffic() {
  const std::lock_guard lock(state().mutex);
  // The compiler has copies of one place in the source: of templates, of unrolled loops.
  std::map<std::tuple<std::string, bool, Access>, Traffic> by_place;
  for (const auto& [source, traffic] : totals) {
    const std::string place = to_string(source.place);
    Traffic& sum = by_place[{place, source.is_shared, source.access}];
    sum.place = place;
    sum.is_shared = source.is_shared;
    sum.access = source.access;
    sum.executions += traffic.executions;
    sum.transactions += traffic.transactions;
    sum.ideal += traffic.ideal;
  }
  totals.clear();
  std::vector<Traffic> result;
  for (auto& [key, traffic] : by_place) result.push_back(std::move(traffic));
  std::ranges::sort(result, std::greater<>(), &Traffic::transactions);
  return result;
}

}  // namespace weft::simt
