#include "dist/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

namespace weft::dist {
namespace {

constexpr double kBytes = 4;  // of an element

double padded_bytes(int64_t elements, int ranks) {
  return kBytes * static_cast<double>((elements + ranks - 1) / ranks * ranks);
}

/// Lanes that run one thing after another, and the clock of the computation.
class Clock {
 public:
  explicit Clock(Timeline& timeline) : timeline_(timeline) {}

  void compute(const std::string& name, double seconds) {
    add("computation", name, now_, seconds);
    now_ += seconds;
    timeline_.computation += seconds;
  }
  /// Begins a collective as soon as its lane is free; returns when it ends.
  double launch(const std::string& lane, const std::string& name, double seconds) {
    double& free = free_[lane];
    const double begin = std::max(now_, free);
    free = begin + seconds;
    add(lane, name, begin, seconds);
    timeline_.communication += seconds;
    return free;
  }
  void wait(double until) { now_ = std::max(now_, until); }
  double now() const { return now_; }

 private:
  void add(const std::string& lane, const std::string& name, double begin, double seconds) {
    if (seconds > 0) timeline_.spans.push_back({lane, name, begin, begin + seconds});
  }

  Timeline& timeline_;
  double now_ = 0;
  std::map<std::string, double> free_;
};

std::string unit_name(int unit) { return unit < 0 ? "root" : fmt::format("unit {}", unit); }

/// A step of a sharded model. Units are known by their index, the root by -1.
class Sharded {
 public:
  Sharded(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
          const StepWork& work, const GroupSeconds& seconds, Clock& clock)
      : layout_(layout),
        sharing_(sharing),
        work_(work),
        seconds_(seconds),
        clock_(clock),
        comes_and_goes_(strategy != "zero1" && strategy != "zero2"),
        reduces_early_(strategy != "zero1"),
        order_(gather_order(layout)) {}

  void run() {
    const int units = static_cast<int>(layout_.units.size());
    if (layout_.root_before > 0) touch(-1);
    clock_.compute("forward root", work_.before.forward);
    for (int u = 0; u < units; ++u) {
      touch(u);
      clock_.compute("forward " + unit_name(u), work_.units[u].forward);
    }
    if (layout_.root_behind > 0) touch(-1);
    clock_.compute("forward root", work_.behind.forward);
    clock_.compute("backward root", work_.behind.backward);
    for (int u = units - 1; u >= 0; --u) {
      touch(u);
      clock_.compute("backward " + unit_name(u), work_.units[u].backward);
      std::erase(resident_, u);
      if (reduces_early_) reduce(u);
    }
    clock_.compute("backward root", work_.before.backward);
    if (!reduces_early_) {
      for (int u = 0; u < units; ++u) reduce(u);
    }
    if (layout_.root() > 0) reduce(-1);
    while (!reducing_.empty()) complete();
    clock_.compute("optimizer", work_.optimizer);
    if (comes_and_goes_) return;
    double end = clock_.now();
    for (int u = layout_.root() > 0 ? -1 : 0; u < units; ++u) end = gather(u);
    clock_.wait(end);
  }

 private:
  double bytes_of(int unit) const {
    return padded_bytes(unit < 0 ? layout_.root() : layout_.units[unit], sharing_.shard);
  }
  double gather(int unit) {
    return clock_.launch("gather", "all_gather " + unit_name(unit),
                         seconds_.shard(Collective::kAllGather, bytes_of(unit)));
  }

  void touch(int unit) {
    if (!comes_and_goes_) return;
    if (std::find(resident_.begin(), resident_.end(), unit) != resident_.end()) return;
    while (resident_.size() >= 2) resident_.pop_front();
    const auto coming = incoming_.find(unit);
    clock_.wait(coming != incoming_.end() ? coming->second : gather(unit));
    incoming_.erase(unit);
    resident_.push_back(unit);
    if (++next_ < order_.size() &&
        std::find(resident_.begin(), resident_.end(), order_[next_]) == resident_.end()) {
      incoming_[order_[next_]] = gather(order_[next_]);
    }
  }

  void reduce(int unit) {
    while (reducing_.size() >= 2) complete();
    const double end = clock_.launch("reduce", "reduce_scatter " + unit_name(unit),
                                     seconds_.shard(Collective::kReduceScatter, bytes_of(unit)));
    reducing_.emplace_back(unit, end);
  }
  void complete() {
    const auto [unit, end] = reducing_.front();
    reducing_.pop_front();
    clock_.wait(end);
    if (sharing_.replicas == 1) return;
    clock_.wait(
        clock_.launch("replicate", "all_reduce " + unit_name(unit),
                      seconds_.replicate(Collective::kAllReduce, bytes_of(unit) / sharing_.shard)));
  }

  const ModelLayout& layout_;
  const Sharing sharing_;
  const StepWork& work_;
  const GroupSeconds& seconds_;
  Clock& clock_;
  const bool comes_and_goes_, reduces_early_;
  const std::vector<int> order_;
  size_t next_ = 0;
  std::deque<int> resident_;
  std::map<int, double> incoming_;
  std::deque<std::pair<int, double>> reducing_;
};

void run_replicated(const ModelLayout& layout, const Sharing& sharing, const StepWork& work,
                    const GroupSeconds& seconds, const BucketSizes& sizes, bool reduces,
                    Clock& clock) {
  clock.compute("forward root", work.before.forward);
  for (size_t u = 0; u < work.units.size(); ++u) {
    clock.compute(fmt::format("forward unit {}", u), work.units[u].forward);
  }
  clock.compute("forward root", work.behind.forward);
  const std::vector<int64_t> buckets =
      reduces ? bucket_elements(layout, sharing.ranks(), sizes) : std::vector<int64_t>();
  size_t next = 0;
  int64_t ready = 0, needed = buckets.empty() ? 0 : buckets[0];
  double end = 0;
  // Buckets are filled in the order in which gradients come.
  const auto backward = [&](const std::string& name, double duration, int64_t elements) {
    clock.compute("backward " + name, duration);
    ready += elements;
    while (next < buckets.size() && (ready >= needed || ready == layout.parameters)) {
      end = clock.launch(
          "reduce", fmt::format("all_reduce bucket {}", next),
          seconds.replicate(Collective::kAllReduce, kBytes * static_cast<double>(buckets[next])));
      if (++next < buckets.size()) needed += buckets[next];
    }
  };
  backward("root", work.behind.backward, layout.root_behind);
  for (size_t u = work.units.size(); u-- > 0;) {
    backward(fmt::format("unit {}", u), work.units[u].backward, layout.units[u]);
  }
  backward("root", work.before.backward, layout.root_before);
  clock.wait(end);
  clock.compute("optimizer", work.optimizer);
}

}  // namespace

double StepWork::total() const {
  double sum = before.forward + before.backward + behind.forward + behind.backward + optimizer;
  for (const Pass& pass : units) sum += pass.forward + pass.backward;
  return sum;
}

double Timeline::hidden_share(double step_seconds) const {
  const double possible = serial() - end;
  return possible <= 0 ? 1 : (serial() - step_seconds) / possible;
}

CollectiveSeconds host_collective_seconds(int ranks, double latency, double bandwidth,
                                          int64_t segment_bytes) {
  return [=](Collective collective, double bytes) {
    if (ranks == 1) return 0.0;
    const double part = bytes / ranks, others = ranks - 1;
    const double scatter =
        std::ceil(part / static_cast<double>(segment_bytes)) * latency + others * part / bandwidth;
    const double gather = latency + others * part / bandwidth;
    switch (collective) {
      case Collective::kAllReduce:
        return scatter + gather;
      case Collective::kReduceScatter:
        return scatter;
      case Collective::kAllGather:
        return gather;
      default:
        WEFT_FAIL("cost: no time for {}", name(collective));
    }
  };
}

Timeline step_timeline(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing, const StepWork& work, const GroupSeconds& seconds,
                       const BucketSizes& buckets) {
  WEFT_CHECK(work.units.size() == layout.units.size(), "step_timeline: times of {} units for {}",
             work.units.size(), layout.units.size());
  state_formula(strategy);  // throws for one that is unknown here
  Timeline timeline;
  Clock clock(timeline);
  if (strategy == "single" || strategy == "ddp") {
    run_replicated(layout, sharing, work, seconds, buckets, strategy == "ddp", clock);
  } else {
    Sharded(strategy, layout, sharing, work, seconds, clock).run();
  }
  timeline.end = clock.now();
  return timeline;
}

nlohmann::json trace_events(const Timeline& timeline, int process) {
  nlohmann::json events = nlohmann::json::array();
  std::map<std::string, int> lanes;
  for (const Timeline::Span& span : timeline.spans) {
    const auto [lane, is_new] = lanes.try_emplace(span.lane, static_cast<int>(lanes.size()));
    if (is_new) {
      events.push_back({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", process},
                        {"tid", lane->second},
                        {"args", {{"name", span.lane}}}});
    }
    events.push_back({{"name", span.name},
                      {"cat", span.lane},
                      {"ph", "X"},
                      {"pid", process},
                      {"tid", lane->second},
                      {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)}});
  }
  return events;
}

}  // namespace weft::dist
