#include "dist/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

#include "dist/stages.h"

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

/// The computation of units, whose cut layers wait for sums over the ranks that share them.
class Units {
 public:
  Units(const ModelLayout& layout, const Sharing& sharing, const StepWork& work,
        const GroupSeconds& seconds, int64_t images, Clock& clock)
      : work_(work), clock_(clock) {
    if (sharing.tensor == 1 || layout.units.empty()) return;
    const double tokens =
        std::ceil(static_cast<double>(layout.tokens) / sharing.tensor) * sharing.tensor;
    const double bytes = layout.activation_bytes * static_cast<double>(images * layout.width) *
                         (sharing.deals_out_tokens ? tokens : static_cast<double>(layout.tokens));
    layers_ = static_cast<double>(layout.cut_layers) / static_cast<double>(layout.units.size());
    const double gather = seconds.tensor(Collective::kAllGather, bytes),
                 scatter = seconds.tensor(Collective::kReduceScatter, bytes);
    is_dealt_out_ = sharing.deals_out_tokens;
    forward_ = is_dealt_out_ ? gather + scatter : seconds.tensor(Collective::kAllReduce, bytes);
    backward_ = is_dealt_out_ ? scatter : forward_;
    again_ = is_dealt_out_ ? gather : 0;
  }

  void forward(int unit) const {
    clock_.compute(name("forward", unit), work_.units[unit].forward);
    if (layers_ == 0) return;
    clock_.wait(clock_.launch("tensor", name("sums of forward", unit), layers_ * forward_));
  }
  /// The sums of the inputs' gradients travel while the weights' gradients are computed, of
  /// dealt-out tokens the tokens themselves while the inputs' are.
  void backward(int unit) const {
    const double all = work_.units[unit].backward;
    if (layers_ == 0) return clock_.compute(name("backward", unit), all);
    if (is_dealt_out_) {  // gradients of what was scattered
      clock_.wait(clock_.launch("tensor", name("gathers of backward", unit), layers_ * again_));
    }
    clock_.compute(name("backward", unit), all * (1 - 2 * kWeightShare));
    const double tokens =
        is_dealt_out_ ? clock_.launch("tensor", name("tokens of", unit), layers_ * again_) : 0;
    clock_.compute(name("backward", unit), all * kWeightShare);
    const double end = clock_.launch("tensor", name("sums of backward", unit), layers_ * backward_);
    clock_.wait(tokens);
    clock_.compute(name("backward", unit), all * kWeightShare);
    clock_.wait(end);
  }

 private:
  /// Of backward: a column-parallel weight's gradient, and its input's, as parts of what a block of
  /// 12 W^2 parameters does: 3 W^2 of attention and 4 W^2 of the MLP, half of it each.
  static constexpr double kWeightShare = 7.0 / 24;

  static std::string name(const char* what, int unit) {
    return fmt::format("{} unit {}", what, unit);
  }

  const StepWork& work_;
  Clock& clock_;
  bool is_dealt_out_ = false;
  double layers_ = 0;  // cut ones in a unit
  double forward_ = 0, backward_ = 0, again_ = 0;
};

std::string unit_name(int unit) { return unit < 0 ? "root" : fmt::format("unit {}", unit); }

/// A step of a sharded model. Units are known by their index, the root by -1.
class Sharded {
 public:
  Sharded(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
          const StepWork& work, const GroupSeconds& seconds, const Units& units, Clock& clock)
      : units_(units),
        layout_(layout),
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
      units_.forward(u);
    }
    if (layout_.root_behind > 0) touch(-1);
    clock_.compute("forward root", work_.behind.forward);
    clock_.compute("backward root", work_.behind.backward);
    for (int u = units - 1; u >= 0; --u) {
      touch(u);
      units_.backward(u);
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

  const Units& units_;
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
                    const GroupSeconds& seconds, const BucketSizes& sizes, const Units& units,
                    Clock& clock) {
  clock.compute("forward root", work.before.forward);
  for (size_t u = 0; u < work.units.size(); ++u) units.forward(static_cast<int>(u));
  clock.compute("forward root", work.behind.forward);
  const std::vector<int64_t> buckets = sharing.replicas > 1
                                           ? bucket_elements(layout, sharing.replicas, sizes)
                                           : std::vector<int64_t>();
  size_t next = 0;
  int64_t ready = 0, needed = buckets.empty() ? 0 : buckets[0];
  double end = 0;
  // Buckets are filled in the order in which gradients come.
  const auto gradients = [&](int64_t elements) {
    ready += elements;
    while (next < buckets.size() && (ready >= needed || ready == layout.parameters)) {
      end = clock.launch(
          "reduce", fmt::format("all_reduce bucket {}", next),
          seconds.replicate(Collective::kAllReduce, kBytes * static_cast<double>(buckets[next])));
      if (++next < buckets.size()) needed += buckets[next];
    }
  };
  clock.compute("backward root", work.behind.backward);
  gradients(layout.root_behind);
  for (size_t u = work.units.size(); u-- > 0;) {
    units.backward(static_cast<int>(u));
    gradients(layout.units[u]);
  }
  clock.compute("backward root", work.before.backward);
  gradients(layout.root_before);
  clock.wait(end);
  clock.compute("optimizer", work.optimizer);
}

/// One of a stage's turns: a micro-batch's forward or backward.
struct Turn {
  bool is_forward = true;
  int64_t micro_batch = 0;
};

/// The order of Pipeline::run.
std::vector<Turn> turns_of(int stage, int stages, int64_t micro_batches, Schedule schedule) {
  const int64_t in_flight = schedule == Schedule::kGpipe ? micro_batches : stages - stage;
  std::vector<Turn> turns;
  int64_t forwards = 0;
  for (int64_t backwards = 0; backwards < micro_batches; ++backwards) {
    while (forwards < micro_batches && forwards - backwards < in_flight) {
      turns.push_back({true, forwards++});
    }
    turns.push_back({false, backwards});
  }
  return turns;
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

std::function<double(double)> host_message_seconds(double latency, double bandwidth) {
  return [=](double bytes) { return latency + bytes / bandwidth; };
}

Timeline step_timeline(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing, const StepWork& work, const GroupSeconds& seconds,
                       const BucketSizes& buckets, int64_t images) {
  WEFT_CHECK(work.units.size() == layout.units.size(), "step_timeline: times of {} units for {}",
             work.units.size(), layout.units.size());
  state_formula(strategy);  // throws for one that is unknown here
  WEFT_CHECK(strategy != "pipeline", "step_timeline: a pipeline's stages have a timeline together");
  Timeline timeline;
  Clock clock(timeline);
  const Units units(layout, sharing, work, seconds, images, clock);
  if (strategy == "single" || strategy == "ddp" || strategy == "tp" || strategy == "dp") {
    run_replicated(layout, sharing, work, seconds, buckets, units, clock);
  } else {
    Sharded(strategy, layout, sharing, work, seconds, units, clock).run();
  }
  timeline.end = clock.now();
  return timeline;
}

Timeline pipeline_timeline(const std::vector<StageWork>& stages, const Sharing& sharing,
                           Schedule schedule, const GroupSeconds& seconds) {
  const int count = static_cast<int>(stages.size());
  const int64_t k = sharing.micro_batches;
  const double header = seconds.message(8.0 * kActivationHeader);
  std::vector<std::vector<Turn>> turns;
  for (int s = 0; s < count; ++s) turns.push_back(turns_of(s, count, k, schedule));
  // When an activation has come to a stage, and a gradient; below 0: not yet known.
  std::vector<std::vector<double>> input(count, std::vector<double>(k, -1)), gradient = input;
  for (int64_t i = 0; i < k; ++i) input[0][i] = gradient[count - 1][i] = 0;
  std::vector<double> now(count, 0), out(count, 0), back(count, 0);  // stages, and lanes from them
  std::vector<size_t> next(count, 0);
  Timeline timeline;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < count; ++s) {
      while (next[s] < turns[s].size()) {
        const auto [is_forward, i] = turns[s][next[s]];
        const double ready = (is_forward ? input : gradient)[s][i];
        if (ready < 0) break;
        const double seconds_here = is_forward ? stages[s].pass.forward : stages[s].pass.backward;
        const double begin = std::max(now[s], ready);
        now[s] = begin + seconds_here;
        timeline.spans.push_back({fmt::format("stage {}", s),
                                  fmt::format("{} {}", is_forward ? "forward" : "backward", i),
                                  begin, now[s]});
        if (is_forward && s + 1 < count) {
          out[s] = std::max(out[s], now[s]) + header + seconds.message(stages[s].given);
          input[s + 1][i] = out[s];
        } else if (!is_forward && s > 0) {
          back[s] = std::max(back[s], now[s]) + seconds.message(stages[s - 1].given);
          gradient[s - 1][i] = back[s];
        }
        ++next[s];
        moved = true;
      }
    }
  }
  for (int s = 0; s < count; ++s) {
    const double reduced =
        sharing.replicas > 1 ? seconds.replicate(Collective::kAllReduce,
                                                 kBytes * static_cast<double>(stages[s].parameters))
                             : 0;
    const double mine =
        static_cast<double>(k) * (stages[s].pass.forward + stages[s].pass.backward) +
        stages[s].optimizer;
    if (mine > timeline.computation) {
      timeline.computation = mine;
      timeline.communication = reduced;
      if (s + 1 < count) {
        timeline.communication +=
            static_cast<double>(k) * (header + seconds.message(stages[s].given));
      }
      if (s > 0) {
        timeline.communication += static_cast<double>(k) * seconds.message(stages[s - 1].given);
      }
    }
    timeline.end = std::max(timeline.end, now[s] + reduced + stages[s].optimizer);
  }
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
