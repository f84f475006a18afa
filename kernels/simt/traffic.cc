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

/// The k-th execution of an access by the lanes of a warp.
struct Execution {
  struct LaneAccess {
    uintptr_t address;
    size_t bytes;
  };
  std::vector<LaneAccess> lanes;
};

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
  const size_t bytes = execution.lanes.front().bytes;
  const size_t group = std::max<size_t>(1, kWarpSize * kBankBytes / std::max(bytes, kBankBytes));
  uint64_t passes = 0;
  std::set<uintptr_t> served;
  for (size_t begin = 0; begin < execution.lanes.size(); begin += group) {
    std::set<uintptr_t> words[kBanks];
    const size_t known = served.size();
    for (size_t i = begin; i < std::min(begin + group, execution.lanes.size()); ++i) {
      const auto& lane = execution.lanes[i];
      for (uintptr_t word = lane.address / kBankBytes;
           word <= (lane.address + lane.bytes - 1) / kBankBytes; ++word) {
        words[word % kBanks].insert(word);
        served.insert(word);
      }
    }
    if (served.size() == known) continue;
    size_t worst = 0;
    for (const auto& bank : words) worst = std::max(worst, bank.size());
    passes += worst;
  }
  return passes;
}

uint64_t sectors(const Execution& execution) {
  std::set<uintptr_t> touched;
  for (const auto& lane : execution.lanes) {
    for (uintptr_t sector = lane.address / kSectorBytes;
         sector <= (lane.address + lane.bytes - 1) / kSectorBytes; ++sector) {
      touched.insert(sector);
    }
  }
  return touched.size();
}

void fold(const Source& source, const Execution& execution) {
  std::set<uintptr_t> distinct;
  for (const auto& lane : execution.lanes) {
    for (uintptr_t byte = lane.address; byte < lane.address + lane.bytes; ++byte) {
      distinct.insert(byte);
    }
  }
  Traffic& total = totals[source];
  total.is_shared = source.is_shared;
  total.access = source.access;
  ++total.executions;
  total.transactions += source.is_shared ? shared_passes(execution) : sectors(execution);
  const size_t unit = source.is_shared ? kPassBytes : kSectorBytes;
  total.ideal += (distinct.size() + unit - 1) / unit;
}

}  // namespace

void count_traffic(const Thread& thread, const Event& event, const void* address, size_t bytes) {
  if (event.agent >= state().n_threads) return;
  const Source source{event.place, event.access, is_shared(address)};
  WarpSource& warp = open_sources[{thread.warp, source}];
  const size_t k = warp.count[thread.lane]++;
  if (warp.executions.size() <= k) warp.executions.resize(k + 1);
  warp.executions[k].lanes.push_back({reinterpret_cast<uintptr_t>(address), bytes});
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
    Traffic& sum = by_place[{place, traffic.is_shared, traffic.access}];
    sum.place = place;
    sum.is_shared = traffic.is_shared;
    sum.access = traffic.access;
    sum.executions += traffic.executions;
    sum.transactions += traffic.transactions;
    sum.ideal += traffic.ideal;
  }
  totals.clear();
  std::vector<Traffic> result;
  for (auto& [key, traffic] : by_place) result.push_back(std::move(traffic));
  std::sort(result.begin(), result.end(),
            [](const Traffic& a, const Traffic& b) { return a.transactions > b.transactions; });
  return result;
}

}  // namespace weft::simt
