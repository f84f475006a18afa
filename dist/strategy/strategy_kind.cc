#include "dist/strategy/strategy_kind.h"

#include <fmt/format.h>

#include <type_traits>

#include "dist/comm/in_process.h"
#include "dist/strategy/strategies.h"

namespace weft::dist {

const std::vector<std::unique_ptr<StrategyKind>>& strategies() {
  static const auto& list = *[] {
    using enum Settings;
    using enum StrategyKind::Devices;
    auto* all = new std::vector<std::unique_ptr<StrategyKind>>;
    const auto add = [&](const char* name, std::unique_ptr<StrategyKind> kind,
                         StrategyKind::Devices devices, Settings settings) {
      kind->name = name;
      kind->devices = devices;
      kind->settings = settings;
      all->push_back(std::move(kind));
    };
#define WEFT_STRATEGY(name, make, devices, settings) add(name, kinds::make(), devices, settings);
#include "dist/strategy/strategy.inc"
#undef WEFT_STRATEGY
    return all;
  }();
  return list;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& kind : strategies()) names.push_back(kind->name);
  return names;
}

std::string strategies_with(Settings setting) {
  std::vector<std::string> names;
  for (const auto& kind : strategies()) {
    if (contains(kind->settings, setting)) names.push_back(kind->name);
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : fmt::format("{} and {}", fmt::join(names, ", "), last);
}

const StrategyKind& find_strategy(const std::string& name) {
  for (const auto& kind : strategies()) {
    if (kind->name == name) return *kind;
  }
  WEFT_FAIL("unknown strategy \"{}\"; expected {}", name, fmt::join(strategy_names(), ", "));
}

const StrategyKind& strategy_of(const StrategyOptions& options, int devices) {
  if (options.name != "auto") return find_strategy(options.name);
  return find_strategy(devices > 1 ? "ddp" : "single");
}

namespace {

/// Calls f(setting, its flag, its value) for every number and every switch.
template <class Options, class F>
void for_each_setting(Options& o, F&& f) {
  f(Settings::kShardSize, "shard-size", o.shard_size);
  f(Settings::kTensorParallel, "tensor-parallel", o.tensor_parallel);
  f(Settings::kPipelineStages, "pipeline-stages", o.pipeline_stages);
  f(Settings::kCpuOffload, "cpu-offload", o.cpu_offload);
  f(Settings::kSequenceParallel, "sequence-parallel", o.sequence_parallel);
  f(Settings::kParallelHead, "parallel-head", o.parallel_head);
  f(Settings::kMicroBatches, "micro-batches", o.micro_batches);
}

void check_settings(const StrategyKind& kind, const StrategyOptions& options, int devices) {
  WEFT_CHECK(devices > 0, "devices must be positive, got {}", devices);
  WEFT_CHECK(kind.devices != StrategyKind::Devices::kOne || devices == 1,
             "strategy {} runs on one device, got {}; choose ddp or fsdp", kind.name, devices);
  for_each_setting(options, [&](Settings setting, const char* flag, const auto& value) {
    const int number = static_cast<int>(value);
    WEFT_CHECK(number >= 0, "{} must not be negative, got {}", flag, number);
    WEFT_CHECK(number == 0 || contains(kind.settings, setting), "{} is a setting of {}, not of {}",
               flag, strategies_with(setting), kind.name);
    constexpr bool is_switch = std::is_same_v<decltype(value), const bool&>;
    const bool counts_devices = !is_switch && setting != Settings::kMicroBatches;
    WEFT_CHECK(!counts_devices || number == 0 || devices % number == 0,
               "{} {} does not divide {} devices", flag, number, devices);
  });
}

}  // namespace

StrategyOptions own_settings(const std::string& name, const StrategyOptions& options) {
  StrategyOptions own = options;
  own.name = name;
  const Settings settings = find_strategy(name).settings;
  for_each_setting(own, [&](Settings setting, const char*, auto& value) {
    if (!contains(settings, setting)) value = {};
  });
  return own;
}

Sharing sharing_of(const StrategyOptions& options, int devices) {
  const StrategyKind& kind = strategy_of(options, devices);
  check_settings(kind, options, devices);
  return kind.share(options, devices);
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world,
                                        int devices) {
  if (world) devices = world->size();
  const StrategyKind& kind = strategy_of(options, devices);
  const Sharing sharing = sharing_of(options, devices);
  // Alone, the program takes the same paths.
  if (!world && kind.devices == StrategyKind::Devices::kRanks) world = make_in_process_world(1)[0];
  return kind.make(options, sharing, std::move(world));
}

}  // namespace weft::dist
