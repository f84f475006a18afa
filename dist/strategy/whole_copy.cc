#include <fmt/format.h>

#include "dist/strategy/strategies.h"

namespace weft::dist {

StateBytes WholeCopy::state_bytes(const ModelLayout& layout, const Sharing&) const {
  StateBytes bytes;
  bytes[MemoryKind::kParameters] = kElementBytes * layout.parameters;
  bytes[MemoryKind::kGradients] = kElementBytes * layout.parameters;
  bytes[MemoryKind::kOptimizer] = kElementBytes * layout.state_tensors * layout.parameters;
  return bytes;
}

Timeline WholeCopy::timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                             const GroupSeconds& seconds, const StepShape& step) const {
  const ModelLayout& layout = ranks.at(0).layout;
  const StepWork& work = ranks[0].work;
  StepClock clock;
  const UnitClock units(ranks[0], sharing, seconds, step.images, clock);
  clock.compute("forward root", work.before.forward);
  for (size_t u = 0; u < work.units.size(); ++u) units.forward(static_cast<int>(u));
  clock.compute("forward root", work.behind.forward);
  const std::vector<int64_t> buckets = sharing.replicas > 1
                                           ? bucket_elements(layout, sharing.replicas, step.buckets)
                                           : std::vector<int64_t>();
  size_t next = 0;
  int64_t ready = 0, needed = buckets.empty() ? 0 : buckets[0];
  double end = 0;
  // Buckets are filled in the order in which gradients come.
  const auto gradients = [&](int64_t elements) {
    ready += elements;
    while (next < buckets.size() && (ready >= needed || ready == layout.parameters)) {
      const auto bytes = static_cast<double>(sharing.gradient_bytes * buckets[next]);
      end = clock.launch("reduce", fmt::format("all_reduce bucket {}", next),
                         seconds.replicate(Collective::kAllReduce, bytes));
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
  return clock.timeline();
}

}  // namespace weft::dist
