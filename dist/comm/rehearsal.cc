#include "dist/comm/rehearsal.h"

#include <algorithm>

#include "dist/comm/transport.h"

namespace weft::dist {
namespace {

/// Ranks that the `place`-th behind a broadcast's root sends to, in a binomial tree.
int receivers(int place, int size) {
  int step = 1, count = 0;
  while (step < size && (place & step) == 0) step *= 2;
  while ((step /= 2) > 0) count += place + step < size;
  return count;
}

int64_t bytes_sent(const Operation& o, int rank, int size) {
  if (o.collective == Collective::kBarrier || o.collective == Collective::kRecv) return 0;
  const int64_t all = o.in.numel(), own = o.counts.empty() ? 0 : o.counts[rank];
  const auto elements = [&]() -> int64_t {
    switch (o.collective) {
      case Collective::kAllReduce:
        return all - own + (size - 1) * own;
      case Collective::kReduceScatter:
      case Collective::kAllToAll:
        return all - own;
      case Collective::kAllGather:
        return (size - 1) * own;
      case Collective::kBroadcast:
        return receivers((rank + size - o.peer) % size, size) * all;
      default:
        return all;
    }
  };
  return elements() * static_cast<int64_t>(o.in.itemsize());
}

class RehearsedRank : public Communicator {
 public:
  /// Without `inner` nothing travels.
  RehearsedRank(std::string name, int rank, int size, CommunicatorPtr inner,
                std::shared_ptr<FlightRecorder> recorder,
                std::shared_ptr<TrafficCounters> family = std::make_shared<TrafficCounters>())
      : Communicator(std::move(name), rank, size, std::move(recorder)),
        inner_(std::move(inner)),
        family_(std::move(family)) {}

  CommunicatorPtr group(const std::vector<int>& ranks, const std::string& name) override {
    const auto place = std::ranges::find(ranks, rank());
    WEFT_CHECK(place != ranks.end(), "group {}: rank {} asks for a group without itself", name,
               rank());
    return std::make_shared<RehearsedRank>(
        name, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()),
        inner_ ? inner_->group(ranks, name) : nullptr, shared_recorder(), family_);
  }
  void leave(const std::string& reason) override {
    if (inner_) inner_->leave(reason);
  }
  Traffic traffic() const override { return own_.read(); }
  Traffic family_traffic() const override { return family_->read(); }

 protected:
  Work start(Operation o) override {
    const int64_t bytes = bytes_sent(o, rank(), size());
    for (TrafficCounters* counters : {&own_, family_.get()}) {
      counters->sent += bytes;
      counters->messages += bytes > 0;
    }
    const bool is_left_out = !inner_ || (o.in.defined() && is_floating(o.in.dtype()));
    if (!is_left_out) return inner_->begin(std::move(o));
    if (o.out.defined() && o.collective != Collective::kSend) o.out.bump_version();
    return {};
  }

 private:
  const CommunicatorPtr inner_;
  TrafficCounters own_;
  const std::shared_ptr<TrafficCounters> family_;
};

}  // namespace

CommunicatorPtr make_absent_world(int rank, int size) {
  WEFT_CHECK(rank >= 0 && rank < size, "absent world: expected a rank below {}, got {}", size,
             rank);
  return std::make_shared<RehearsedRank>("world", rank, size, nullptr,
                                         std::make_shared<FlightRecorder>(rank));
}

CommunicatorPtr without_floats(CommunicatorPtr world) {
  const std::string name = world->name();
  const int rank = world->rank(), size = world->size();
  const auto recorder = world->shared_recorder();
  return std::make_shared<RehearsedRank>(name, rank, size, std::move(world), recorder);
}

}  // namespace weft::dist
