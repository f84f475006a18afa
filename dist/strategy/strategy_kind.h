// What a strategy is before there are ranks: how it shares devices and a batch, what it costs, how
// it is made. strategy.inc lists all; whoever wants to know something of a strategy asks its row.
//
//   const StrategyKind& kind = find_strategy("fsdp+tp");
//   const Sharing sharing = sharing_of({.name = "fsdp+tp"}, 8);      // throws what does not fit
//   kind.state_bytes(layout, sharing).total();                       // kept by a rank
//
// A new strategy is a file beside the others here and a line of strategy.inc.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/plan/cost.h"
#include "dist/plan/step_time.h"
#include "dist/strategy/options.h"

namespace weft::dist {

class Strategy;

/// What a plan may choose from.
struct PlanChoice {
  int devices = 1, devices_per_node = 1;
  /// Devices for which the model's layers and its depth can be cut; 1: they cannot.
  int tensor = 1, stages = 1;
  StrategyOptions asked = {};  // settings; 0: the plan's choice
};

class StrategyKind {
 public:
  /// One, threads of one process, or processes and whatever else has a communicator.
  enum class Devices : uint8_t { kOne, kThreads, kRanks };

  virtual ~StrategyKind() = default;

  // From strategy.inc.
  std::string name;
  Devices devices = Devices::kRanks;
  Settings settings = Settings::kNone;

  /// How so many devices share a model and a batch. The settings are the strategy's own, and those
  /// that count devices divide them. Throws Error for what is left to be wrong.
  virtual Sharing share(const StrategyOptions& options, int devices) const = 0;
  /// Of this rank of `world`, which is null where the devices are not ranks.
  virtual std::unique_ptr<Strategy> make(const StrategyOptions& options, const Sharing& sharing,
                                         CommunicatorPtr world) const = 0;
  /// Whether its sums can be the same bits for any number of ranks.
  virtual bool fixes_order() const { return true; }
  /// Whether it keeps and sends what the levels of fp8 say: O1 and O2 of gradients that each rank
  /// has whole, O3 of matrices that one rank owns or all have (dist/strategy/fp8_zero.h).
  virtual bool takes_fp8_level(int level) const { return level == 0; }

  /// Bytes that the rank whose layout it is keeps, each kind at its peak.
  virtual StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const = 0;
  /// Bytes that the rank sends in a step.
  virtual int64_t sent_bytes(const ModelLayout& layout, const Sharing& sharing,
                             const StepShape& step = {}) const = 0;
  /// The two in terms of cost.h: "4 P parameters + ...".
  virtual std::string state_formula() const = 0;
  virtual std::string sent_formula() const = 0;
  /// A step; `ranks` has one rank for all, of a pipeline one of each stage.
  virtual Timeline timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                            const GroupSeconds& seconds, const StepShape& step = {}) const = 0;
  /// With which options it has a place in a plan, if any.
  virtual std::optional<StrategyOptions> planned(const PlanChoice& choice) const = 0;
};

/// Those of strategy.inc.
const std::vector<std::unique_ptr<StrategyKind>>& strategies();
std::vector<std::string> strategy_names();
/// "tp and fsdp+tp": those that have a setting.
std::string strategies_with(Settings setting);
/// Throws Error listing all names.
const StrategyKind& find_strategy(const std::string& name);
/// Of options.name, with "auto" resolved for so many devices.
const StrategyKind& strategy_of(const StrategyOptions& options, int devices);
/// `options` under another name, with those of the settings that are the strategy's own.
StrategyOptions own_settings(const std::string& name, const StrategyOptions& options);

/// Throws Error naming a setting that is out of range or not the strategy's, and what was expected.
Sharing sharing_of(const StrategyOptions& options, int devices);
/// With the strategy's own settings. (A template, so that braces mean options.)
template <std::convertible_to<std::string> Name>
Sharing sharing_of(const Name& strategy, int devices, int shard_size = 0) {
  return sharing_of(StrategyOptions{.name = strategy, .shard_size = shard_size}, devices);
}

}  // namespace weft::dist
