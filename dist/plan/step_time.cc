#include "dist/plan/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace weft::dist {
namespace {

/// Of backward: a column-parallel weight's gradient, and its input's, as parts of what a block of
/// 12 W^2 parameters does: 3 W^2 of attention and 4 W^2 of the MLP, half of it each.
constexpr double kWeightShare = 7.0 / 24;

std::string name(const char* what, int unit) { return fmt::format("{} unit {}", what, unit); }

}  // namespace

StepWork::Pass StepWork::pass() const {
  std::vector<Pass> parts = units;
  parts.push_back(behind);
  Pass sum = before;
  for (const Pass& part : parts) sum.forward += part.forward, sum.backward += part.backward;
  return sum;
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

double Timeline::hidden_share(double step_seconds) const {
  const double possible = serial() - end;
  return possible <= 0 ? 1 : (serial() - step_seconds) / possible;
}

void StepClock::compute(const std::string& name, double seconds) {
  add("computation", name, now_, seconds);
  now_ += seconds;
  timeline_.computation += seconds;
}

double StepClock::launch(const std::string& lane, const std::string& name, double seconds) {
  double& free = free_[lane];
  const double begin = std::max(now_, free);
  free = begin + seconds;
  add(lane, name, begin, seconds);
  timeline_.communication += seconds;
  return free;
}

Timeline StepClock::timeline() const {
  Timeline timeline = timeline_;
  timeline.end = now_;
  return timeline;
}

void StepClock::add(const std::string& lane, const std::string& name, double begin,
                    double seconds) {
  if (seconds > 0) timeline_.spans.push_back({lane, name, begin, begin + seconds});
}

UnitClock::UnitClock(const RankWork& rank, const Sharing& sharing, const GroupSeconds& seconds,
                     int64_t images, StepClock& clock)
    : work_(rank.work), clock_(clock) {
  const ModelLayout& layout = rank.layout;
  WEFT_CHECK(work_.units.size() == layout.units.size(), "timeline: times of {} units for {}",
             work_.units.size(), layout.units.size());
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

void UnitClock::forward(int unit) const {
  clock_.compute(name("forward", unit), work_.units[unit].forward);
  if (layers_ == 0) return;
  clock_.wait(clock_.launch("tensor", name("sums of forward", unit), layers_ * forward_));
}

void UnitClock::backward(int unit) const {
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

}  // namespace weft::dist
