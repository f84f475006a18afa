// Vector clocks: what each agent of a cluster knows of the others' past.
//
// Agents are the cluster's threads, one copy engine per thread for cp.async, and a pool for bulk
// copies and wgmma. Each has a clock, which moves on when it releases something. Event (agent,
// clock) happened before what a thread does now if the thread has seen that clock of that agent.
// Barriers, warp syncs, mbarriers, fences with atomics and waits on copies pass knowledge on (C.
// Flanagan, S. Freund, "FastTrack", PLDI 2009; PTX ISA, "Memory Consistency Model").
//
// Clocks never go back: a cluster's start where the last one's ended, so that what an earlier
// launch did is told apart by its clock alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace weft::simt {

using Clock = uint32_t;

struct Knowledge;
using KnowledgePtr = std::shared_ptr<const Knowledge>;
/// By the number of a cluster in the launch.
using KnowledgeByCluster = std::map<uint32_t, KnowledgePtr>;

struct Knowledge {
  std::vector<Clock> seen;  // per agent
  /// Per agent: what of its generic writes a proxy fence has shown to the asynchronous proxy.
  std::vector<Clock> fenced;
  /// What was learnt, through atomics, of clusters that ran earlier in the launch.
  std::shared_ptr<const KnowledgeByCluster> earlier;
};

/// The union; one of the two where it has all of the other.
KnowledgePtr join(const KnowledgePtr& a, const KnowledgePtr& b);
/// mine = join(mine, known)
void join_into(KnowledgePtr& mine, const KnowledgePtr& known);
/// `known`, and the agent up to a clock.
KnowledgePtr with_event(const KnowledgePtr& known, int agent, Clock clock);

/// The joint knowledge of those that arrive at a barrier.
class Release {
 public:
  void add(const KnowledgePtr& known, int agent, Clock clock);
  /// Everything added since the last take(); null when there was nothing.
  KnowledgePtr take();

 private:
  std::vector<KnowledgePtr> parts_;
  std::vector<std::pair<int, Clock>> events_;  // of agents
};

}  // namespace weft::simt
