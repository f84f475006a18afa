// When things happen in a step: computation, and collectives beside it as far as the schedule of a
// strategy allows.
//
//   Timeline t = step_timeline("fsdp", layout, {.shard = 4}, work, collectives);
//   t.end;                       // seconds of the step
//   t.serial() - t.end;          // of communication, hidden behind computation
//
// The schedules are those of ddp.h and fsdp.h: buckets leave when their gradients are complete, one
// after another; a unit is gathered while the one before it computes; two units' gradients are on
// their way at a time; what zero1 reduces and what zero1 and zero2 gather, hides behind nothing.
// Collectives of one group run one after another, those of different groups beside each other. Cut
// layers wait for their sums, forward, and for what is left of them behind the weight's gradient,
// backward. A pipeline's stages take their micro-batches in the order of their schedule and wait
// for the neighbours' activations and gradients.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dist/cost.h"

namespace weft::dist {

/// Seconds that a rank computes.
struct StepWork {
  struct Pass {
    double forward = 0, backward = 0;
  };
  std::vector<Pass> units;  // as ModelLayout has them
  Pass before, behind;      // the root's
  double optimizer = 0;

  double total() const;
};

/// Seconds of a collective on a buffer of so many bytes, whole.
using CollectiveSeconds = std::function<double(Collective collective, double bytes)>;
struct GroupSeconds {
  CollectiveSeconds shard, replicate;
  CollectiveSeconds tensor = {};                     // of tp and fsdp+tp
  std::function<double(double bytes)> message = {};  // of a pipeline, to a neighbour
};
/// Of host_communicator.h's collectives on a transport like slowed()'s: each exchange takes
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

/// A message of host_communicator.h's on such a transport.
std::function<double(double bytes)> host_message_seconds(double latency, double bandwidth);

/// `images` of a batch of those who share one, for what tp sends. Not of pipelines.
Timeline step_timeline(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing, const StepWork& work, const GroupSeconds& seconds,
                       const BucketSizes& buckets = {}, int64_t images = 1);

/// What a stage of a pipeline does with each of its micro-batches, and with all of them.
struct StageWork {
  StepWork::Pass pass;     // seconds, of a micro-batch
  double given = 0;        // bytes of a micro-batch's activation for the next stage
  int64_t parameters = 0;  // elements
  double optimizer = 0;    // seconds
};
/// The stages' lanes are "stage 0", ...; `computation` is that of the busiest stage and
/// `communication` what its neighbours' activations and gradients take on their way.
Timeline pipeline_timeline(const std::vector<StageWork>& stages, const Sharing& sharing,
                           Schedule schedule, const GroupSeconds& seconds);

/// Spans as events of Chrome's trace format, one process of a lane each.
nlohmann::json trace_events(const Timeline& timeline, int process);

}  // namespace weft::dist
