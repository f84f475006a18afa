// When things happen in a step: computation, and collectives beside it as far as the schedule of a
// strategy allows (StrategyKind::timeline in dist/strategy/strategy_kind.h).
//
// Collectives of one group run one after another, those of different groups beside each other. Cut
// layers wait for their sums, forward, and for what is left of them behind the weight's gradient,
// backward.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/plan/cost.h"

namespace weft::dist {

/// Seconds that a rank computes.
struct StepWork {
  struct Pass {
    double forward = 0, backward = 0;
  };
  std::vector<Pass> units;  // as ModelLayout has them
  Pass before, behind;      // the root's
  double optimizer = 0;

  /// Of the units and the root.
  Pass pass() const;
};

/// What a rank has of the model, and what it computes: of a pipeline's stage with each of its
/// micro-batches.
struct RankWork {
  ModelLayout layout;
  StepWork work;
};

/// Seconds of a collective on a buffer of so many bytes, whole.
using CollectiveSeconds = std::function<double(Collective collective, double bytes)>;
struct GroupSeconds {
  CollectiveSeconds shard, replicate;
  CollectiveSeconds tensor = {};                     // of tp and fsdp+tp
  std::function<double(double bytes)> message = {};  // of a pipeline, to a neighbour
};
/// Of host_communicator.h's collectives on a slowed transport: each exchange takes
/// `latency` seconds, and its bytes their time at `bandwidth` bytes per second.
CollectiveSeconds host_collective_seconds(int ranks, double latency, double bandwidth,
                                          int64_t segment_bytes = 256 << 10);

struct Timeline {
  struct Span {
    std::string lane, name;
    double begin = 0, end = 0;  // seconds
  };
  std::vector<Span> spans;
  double end = 0;
  double computation = 0, communication = 0;

  /// Were nothing hidden.
  double serial() const { return computation + communication; }
  /// Of what can be hidden, the share that a step of so many seconds hides; 1 where nothing can.
  double hidden_share(double step_seconds) const;
};

/// Lanes that run one thing after another, and the clock of the computation.
class StepClock {
 public:
  void compute(const std::string& name, double seconds);
  /// Begins a collective as soon as its lane is free; returns when it ends.
  double launch(const std::string& lane, const std::string& name, double seconds);
  void wait(double until) { now_ = std::max(now_, until); }
  double now() const { return now_; }
  /// What has happened so far.
  Timeline timeline() const;

 private:
  void add(const std::string& lane, const std::string& name, double begin, double seconds);

  Timeline timeline_;
  double now_ = 0;
  std::map<std::string, double> free_;
};

/// The computation of units, whose cut layers wait for sums over the ranks that share them, of
/// `images` of a batch of those who share one.
class UnitClock {
 public:
  UnitClock(const RankWork& rank, const Sharing& sharing, const GroupSeconds& seconds,
            int64_t images, StepClock& clock);

  void forward(int unit) const;
  /// The sums of the inputs' gradients travel while the weights' gradients are computed, of
  /// dealt-out tokens the tokens themselves while the inputs' are.
  void backward(int unit) const;

 private:
  const StepWork& work_;
  StepClock& clock_;
  bool is_dealt_out_ = false;
  double layers_ = 0;  // cut ones in a unit
  double forward_ = 0, backward_ = 0, again_ = 0;
};

}  // namespace weft::dist
