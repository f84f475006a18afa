#include "dist/strategy/strategy_kind.h"

#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <type_traits>

#include "dist/comm/in_process.h"
#include "dist/strategy/settings.h"
#include "dist/strategy/strategies.h"
#include "io/nearest.h"

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
  const std::vector<std::string> known = strategy_names();
  WEFT_FAIL("unknown strategy \"{}\"; expected {}{}", name, fmt::join(known, ", "),
            io::did_you_mean(name, known));
}

const StrategyKind& strategy_of(const StrategyOptions& options, int devices) {
  if (options.name != "auto") return find_strategy(options.name);
  return find_strategy(devices > 1 ? "ddp" : "single");
}

namespace {

/// Those whose values count devices.
constexpr Settings kDeviceCounts =
    Settings::kShardSize | Settings::kTensorParallel | Settings::kPipelineStages;

void check_settings(const StrategyKind& kind, const StrategyOptions& options, int devices) {
  WEFT_CHECK(devices > 0, "devices must be positive, got {}", devices);
  WEFT_CHECK(kind.devices != StrategyKind::Devices::kOne || devices == 1,
             "strategy {} runs on one device, got {}; choose ddp or fsdp", kind.name, devices);
  const auto check_own = [&](Settings setting, const char* flag, bool is_default) {
    WEFT_CHECK(is_default || contains(kind.settings, setting), "{} is a setting of {}, not of {}",
               flag, strategies_with(setting), kind.name);
  };
  // Of its own type, it is not in the list.
  check_own(Settings::kSchedule, "pipeline-schedule", options.schedule != Schedule::kGpipe);
  for_each_setting([&]<class Value>(const SettingText& text, Value StrategyOptions::*member) {
    const auto& [setting, flag, takes, help, usual] = text;
    const Value& value = options.*member;
    check_own(setting, flag, value == Value());
    if constexpr (std::is_same_v<Value, int>) {
      WEFT_CHECK(value >= 0, "{} must not be negative, got {}", flag, value);
      const bool counts_devices = contains(kDeviceCounts, setting);
      WEFT_CHECK(!counts_devices || value == 0 || devices % value == 0,
                 "{} {} does not divide {} devices", flag, value, devices);
    }
  });
  WEFT_CHECK(!options.shard_grad_op || options.resident_units == 0,
             "resident-units: under shard-grad-op all units stay whole until backward");
  WEFT_CHECK(options.resident_units != 1,
             "resident-units: expected 2 or more: an operation may read two together");
  narrow_dtype("compress-dtype", options.compress_dtype);
  narrow_dtype("param-dtype", options.param_dtype);
  narrow_dtype("reduce-dtype", options.reduce_dtype);
  narrow_dtype("buffer-dtype", options.buffer_dtype);
  WEFT_CHECK(!options.cpu_offload || !options.offload_optimizer,
             "offload-optimizer: cpu-offload keeps the optimizer on the CPU too; leave out one");
  WEFT_CHECK(!options.static_graph || !options.find_unused,
             "find-unused: under static-graph the first iteration shows what is used");
  wrap_policy(options.wrap, {});
}

}  // namespace

DType narrow_dtype(std::string_view setting, const std::string& name) {
  if (name.empty() || name == "fp32" || name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16" || name == "f16") return DType::f16;
  WEFT_FAIL("{}: expected bf16, fp16 or fp32, got \"{}\"{}", setting, name,
            io::did_you_mean(name, {"bf16", "fp16", "fp32"}));
}

WrapPolicy wrap_policy(const std::string& wrap, const WrapPolicy& own) {
  if (wrap.empty()) return own;
  if (wrap[0] == '-' || std::isdigit(static_cast<unsigned char>(wrap[0])) != 0) {
    int64_t parameters = 0;
    const char* const end = wrap.data() + wrap.size();
    const auto [rest, error] = std::from_chars(wrap.data(), end, parameters);
    WEFT_CHECK(error == std::errc() && rest == end && parameters > 0,
               "wrap: expected a positive number of parameters or names of classes, got \"{}\"",
               wrap);
    return wrap_by_size(parameters);
  }
  std::vector<std::string> classes;
  for (size_t begin = 0; begin <= wrap.size();) {
    const size_t end = std::min(wrap.find(',', begin), wrap.size());
    classes.push_back(wrap.substr(begin, end - begin));
    WEFT_CHECK(!classes.back().empty(), "wrap: an empty name of a class in \"{}\"", wrap);
    begin = end + 1;
  }
  return wrap_by_class_names(classes);
}

StrategyOptions own_settings(const std::string& name, const StrategyOptions& options) {
  StrategyOptions own = options;
  own.name = name;
  const Settings settings = find_strategy(name).settings;
  for_each_setting([&](const SettingText& text, auto member) {
    if (!contains(settings, text.setting)) own.*member = {};
  });
  if (!contains(settings, Settings::kSchedule)) own.schedule = StrategyOptions().schedule;
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
