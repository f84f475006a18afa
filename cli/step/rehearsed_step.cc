#include "cli/step/rehearsed_step.h"

#include <algorithm>

#include "dist/comm/in_process.h"
#include "dist/comm/rehearsal.h"
#include "kernels/rehearsal/rehearsal.h"

namespace weft::cli {
namespace {

/// Of a step after two others.
RankCost cost_of(RankedStep& step, const dist::CommunicatorPtr& world) {
  step.run();
  step.run();
  step.account().reset_peak();
  const auto sent = [&] { return world ? world->family_traffic().sent : 0; };
  const int64_t before = sent();
  step.run();
  const MemoryAccount& account = step.account();
  RankCost cost{
      .state = account.state().peak, .peak = account.total().peak, .sent = sent() - before};
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    cost.kinds[kind] = account.bytes(static_cast<MemoryKind>(kind)).peak;
  }
  return cost;
}

/// The stages of one pipeline, which need each other to know what comes. Its copies add their sums
/// of gradients, in no memory of their own.
std::vector<RankCost> rehearse_stages(RankedStepOptions options, const dist::Sharing& sharing,
                                      int devices) {
  const std::vector<dist::ModelLayout> layouts = layouts_of_model(options, devices);
  const dist::StrategyKind& kind = dist::strategy_of(options.strategy, devices);
  options.strategy.pipeline_stages = sharing.stages;
  std::vector<RankCost> stages(sharing.stages);
  dist::run_ranks(sharing.stages, [&](dist::Communicator& world) {
    const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
    const dist::CommunicatorPtr rehearsed = dist::without_floats(handle);
    RankedStep step(options, rehearsed);
    stages[world.rank()] = cost_of(step, rehearsed);
  });
  dist::Sharing alone = sharing;
  alone.replicas = 1;
  for (int s = 0; s < sharing.stages; ++s) {
    const dist::StepShape shape{.rank = s, .images = images_of(options, sharing)};
    stages[s].sent +=
        kind.sent_bytes(layouts[s], sharing, shape) - kind.sent_bytes(layouts[s], alone, shape);
  }
  return stages;
}

/// One rank of many, which stands for all of them: the others are not there. Of the devices of one
/// rank that are its threads it is the first that is counted, which has what they share.
RankCost rehearse_rank(RankedStepOptions options, int ranks, int devices) {
  options.devices = devices;
  const dist::CommunicatorPtr world = ranks > 1 ? dist::make_absent_world(0, ranks) : nullptr;
  RankedStep step(options, world);
  return cost_of(step, world);
}

}  // namespace

std::vector<RankCost> rehearse(const RankedStepOptions& options, int devices) {
  const kernels::Rehearsal rehearsal;
  const dist::Sharing sharing = dist::sharing_of(filled(options, devices), devices);
  if (sharing.stages > 1) return rehearse_stages(options, sharing, devices);
  return {rehearse_rank(options, sharing.ranks(), devices)};
}

std::vector<RankCost> measure(const RankedStepOptions& options, int devices) {
  const int ranks = dist::sharing_of(filled(options, devices), devices).ranks();
  if (ranks == 1) {
    RankedStepOptions mine = options;
    mine.devices = devices;
    RankedStep step(mine, nullptr);
    return {cost_of(step, nullptr)};
  }
  std::vector<RankCost> costs(ranks);
  dist::run_ranks(ranks, [&](dist::Communicator& world) {
    const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
    RankedStep step(options, handle);
    costs[world.rank()] = cost_of(step, handle);
  });
  return costs;
}

const RankCost& fullest(const std::vector<RankCost>& ranks) {
  return *std::ranges::max_element(ranks, {}, &RankCost::peak);
}

}  // namespace weft::cli
