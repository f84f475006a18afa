// weft estimate: what a training step keeps and sends, without a step and without its memory.
//
// The steps of the rows are rehearsed (cli/step/rehearsed_step.h): the training's own code
// allocates and frees, and nothing computes. Of a count of parameters alone it says what
// Accelerate's estimator says: accelerate/commands/estimate.py.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/devices_option.h"
#include "cli/json_line.h"
#include "cli/step/rehearsed_step.h"
#include "data/loader.h"
#include "dist/strategy/aliases.h"
#include "io/nearest.h"
#include "io/progress.h"
#include "nn/meta.h"
#include "train/config.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::vector<std::string> models = {"vit_b_16"}, precisions = {"fp32", "bf16"}, strategies;
  RankedStepOptions step = {
      .batch = 32, .is_batch_shared = true, .batches_ahead = data::LoaderOptions{}.prefetch};
  std::string devices_text;
  int devices = 1;                           // that it says
  int64_t parameters = 0, buffer_bytes = 0;  // of a model that is not here
  std::vector<std::string> dtypes = {"float32", "float16"};
  bool check = false, json = false;
};

constexpr double kTolerance = 0.05;       // of a peak, with --check
constexpr double kMostParameters = 1e17;  // 16 bytes of each can be counted in 64 bits

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f}", 1e-6 * static_cast<double>(bytes));
}

/// "413.18 MiB"
std::string binary(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

// A count of parameters.

/// The stages of a step with Adam in multiples of the model's bytes in float32.
struct Training {
  double model, gradients, backward, step;
};
struct Format {
  const char* name;
  double bytes;  // of a parameter
  std::optional<Training> training;
};

const Format& find_format(const std::string& name) {
  constexpr Training kMixed = {1, 1.5, 2, 2};
  static const std::vector<Format> formats = {{"float32", 4, Training{1, 1, 2, 4}},
                                              {"float16", 2, kMixed},
                                              {"bfloat16", 2, kMixed},
                                              {"int8", 1, {}},
                                              {"int4", 0.5, {}}};
  std::vector<std::string> names;
  for (const Format& format : formats) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  throw UsageError("--dtype: \"{}\" is not one of {}{}", name, fmt::join(names, ", "),
                   io::did_you_mean(name, names));
}

int estimate_count(const Arguments& a) {
  io::Table table({{"dtype", 9, io::Table::Align::kLeft},
                   {"model", 11},
                   {"trained as", 11},
                   {"gradients", 11},
                   {"backward", 11},
                   {"Adam's step", 11},
                   {"peak", 11}});
  std::vector<Format> formats;
  for (const std::string& dtype : a.dtypes) formats.push_back(find_format(dtype));
  const auto buffers = static_cast<double>(a.buffer_bytes);
  for (const Format& format : formats) {
    const auto count = static_cast<double>(a.parameters);
    const double stored = format.bytes * count + format.bytes / 4 * buffers;
    const double whole = 4 * count + buffers;
    ordered_json result = {{"parameters", a.parameters},
                           {"dtype", format.name},
                           {"model_bytes", static_cast<int64_t>(stored)}};
    std::vector<std::string> cells = {format.name, binary(stored)};
    if (const auto& t = format.training) {
      const double peak = whole * std::max({t->model, t->gradients, t->backward, t->step});
      const std::pair<const char*, double> parts[] = {{"trained_model_bytes", whole * t->model},
                                                      {"gradients_bytes", whole * t->gradients},
                                                      {"backward_bytes", whole * t->backward},
                                                      {"step_bytes", whole * t->step},
                                                      {"peak_bytes", peak}};
      for (const auto& [name, bytes] : parts) {
        result[name] = static_cast<int64_t>(bytes);
        cells.push_back(binary(bytes));
      }
    } else {
      cells.insert(cells.end(), 5, "-");
    }
    if (a.json) {
      print_json(result);
    } else {
      table.row(cells);
    }
  }
  if (!a.json) {
    fmt::print(
        "\n{} parameters and {} bytes of buffers (--buffers), as Accelerate's estimator counts: "
        "training with Adam, activations apart; in 16 bits with weights in float32, too.\n",
        a.parameters, a.buffer_bytes);
  }
  return 0;
}

// A model that is here.

/// The module whose own parameters take the most.
std::pair<std::string, int64_t> largest_layer(const NamedTensors& parameters) {
  std::map<std::string, int64_t> layers;
  for (const auto& [name, tensor] : parameters) {
    const size_t dot = name.rfind('.');
    layers[dot == std::string::npos ? name : name.substr(0, dot)] +=
        static_cast<int64_t>(tensor.nbytes());
  }
  return *std::ranges::max_element(layers, {}, [](const auto& layer) { return layer.second; });
}

/// Throws Error where the model and so many devices do not go together with a strategy, or the
/// model has no activation checkpointing and it is asked for.
void check_possible(const RankedStepOptions& step, int devices) {
  train::check_fp8_level(step.fp8_level, train::find_precision(step.precision), step.strategy,
                         devices);
  layouts_of_model(step, devices);
}

bool is_possible(const RankedStepOptions& step, int devices) {
  try {
    check_possible(step, devices);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// "fp8:O2" as "fp8" and "O2".
std::pair<std::string, std::string> precision_and_level(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  return {text.substr(0, colon), text.substr(std::min(colon + 1, text.size()))};
}

std::string precision_text(const RankedStepOptions& row) {
  return row.precision + (row.fp8_level.empty() ? "" : ":" + row.fp8_level);
}

/// The strategy, under any name that it has, with those of the settings that are its own.
dist::StrategyOptions strategy_named(const Arguments& a, const std::string& name) {
  dist::StrategyOptions options = a.step.strategy;
  options.name = name;
  options = dist::named_here(options);
  return dist::own_settings(dist::strategy_of(options, a.devices).name, options);
}

/// The rows of a model. What was not asked for by name, and does not fit it, is left out; throws
/// Error for what was.
std::vector<RankedStepOptions> rows_of(const Arguments& a, const std::string& model) {
  std::vector<RankedStepOptions> rows;
  std::vector<std::string> strategies = a.strategies;
  if (strategies.empty())
    strategies = a.devices == 1 ? std::vector<std::string>{"single"} : dist::strategy_names();
  std::vector<bool> checkpointing = {false, true};
  if (a.step.options.checkpoint_activations) checkpointing = {true};
  for (const std::string& name : strategies) {
    const dist::StrategyOptions strategy = strategy_named(a, name);
    const bool is_alone =
        dist::find_strategy(strategy.name).devices == dist::StrategyKind::Devices::kOne;
    if (a.strategies.empty() && is_alone && a.devices > 1) continue;
    for (const std::string& precision : a.precisions) {
      for (const bool checkpoints : checkpointing) {
        RankedStepOptions row = a.step;
        row.model = model;
        std::tie(row.precision, row.fp8_level) = precision_and_level(precision);
        row.strategy = strategy;
        if (checkpoints) row.options.checkpoint_activations = true;
        const bool is_asked_for =
            !a.strategies.empty() && (!checkpoints || a.step.options.checkpoint_activations);
        if (is_asked_for) check_possible(row, a.devices);
        if (is_asked_for || is_possible(row, a.devices)) rows.push_back(row);
      }
    }
  }
  return rows;
}

constexpr MemoryKind kColumns[] = {MemoryKind::kParameters, MemoryKind::kGradients,
                                   MemoryKind::kOptimizer,  MemoryKind::kGathered,
                                   MemoryKind::kBuckets,    MemoryKind::kActivations};

RankedStepOptions step_of(const Arguments& a, const std::string& model) {
  RankedStepOptions step = a.step;
  step.model = model;
  return step;
}

/// Whether the estimates hold, where they are checked.
bool estimate_model(const Arguments& a, const std::string& name,
                    const std::vector<RankedStepOptions>& rows) {
  std::pair<std::string, int64_t> largest;
  int64_t parameters = 0;
  {
    const nn::MetaScope meta;  // sizes need no memory
    const auto model = make_step_model(step_of(a, name));
    parameters = model->num_parameters();
    largest = largest_layer(model->named_parameters());
  }
  if (!a.json) {
    fmt::print("{}: {} parameters, {} MB in fp32; the largest layer, {}, has {} MB\n", name,
               parameters, megabytes(4 * parameters), largest.first, megabytes(largest.second));
    fmt::print("batch {} on each of {}, {}; MB on the fullest device in a step\n\n", a.step.batch,
               a.devices == 1 ? "1 device"
                              : fmt::format("{} devices, of which those that share a layer or a "
                                            "pipeline count as one",
                                            a.devices),
               a.step.optimizer);
  }
  std::vector<io::Table::Column> columns = {{"strategy", 8, io::Table::Align::kLeft},
                                            {"precision", 9, io::Table::Align::kLeft},
                                            {"recomputes", 10, io::Table::Align::kLeft}};
  for (const MemoryKind kind : kColumns) columns.push_back({std::string(weft::name(kind)), 9});
  columns.insert(columns.end(), {{"peak", 9}, {"sent", 9}});
  if (a.check) columns.insert(columns.end(), {{"measured", 9}, {"off", 6}});
  io::Table table(columns);
  bool holds = true;
  for (const RankedStepOptions& row : rows) {
    const RankCost cost = fullest(rehearse(row, a.devices));
    const bool recomputes = row.options.checkpoint_activations.value_or(false);
    int64_t measured = 0;
    double off = 0;
    if (a.check) {
      measured = fullest(measure(row, a.devices)).peak;
      off = static_cast<double>(cost.peak) / static_cast<double>(measured) - 1;
      holds = holds && std::abs(off) <= kTolerance;
    }
    if (a.json) {
      ordered_json result = {{"model", name},
                             {"parameters", parameters},
                             {"largest_layer", largest.first},
                             {"largest_layer_bytes", largest.second},
                             {"devices", a.devices},
                             {"batch", a.step.batch},
                             {"optimizer", a.step.optimizer},
                             {"strategy", row.strategy.name},
                             {"precision", precision_text(row)},
                             {"checkpoint_activations", recomputes}};
      for (const MemoryKind kind : kColumns) {
        result[fmt::format("{}_bytes", weft::name(kind))] = cost[kind];
      }
      result["peak_bytes"] = cost.peak;
      result["sent_bytes"] = cost.sent;
      if (a.check) result["measured_peak_bytes"] = measured, result["off"] = off;
      print_json(result);
      continue;
    }
    std::vector<std::string> cells = {row.strategy.name, precision_text(row),
                                      recomputes ? "yes" : "no"};
    for (const MemoryKind kind : kColumns) cells.push_back(megabytes(cost[kind]));
    cells.insert(cells.end(), {megabytes(cost.peak), megabytes(cost.sent)});
    if (a.check)
      cells.insert(cells.end(), {megabytes(measured), fmt::format("{:+.1f}%", 100 * off)});
    table.row(cells);
  }
  return holds;
}

int run(Arguments a) {
  if (const int n = device_count(a.devices_text, chosen_device({})); n > 0) a.devices = n;
  if (a.parameters > 0) return estimate_count(a);
  std::vector<std::vector<RankedStepOptions>> rows;  // of each model
  as_usage([&] {
    for (const std::string& text : a.precisions) {
      const auto [name, level] = precision_and_level(text);
      train::check_fp8_level(level, train::find_precision(name), {.name = "single"}, 1);
    }
    for (const std::string& name : a.strategies) {
      dist::sharing_of(strategy_named(a, name), a.devices);
    }
    const auto known = step_model_names();
    for (const std::string& name : a.models) {
      WEFT_CHECK(name != train::kGpt2,
                 "--model {}: its weights say how large it is; expected {}, or a count of "
                 "--parameters",
                 name, fmt::join(known, ", "));
      WEFT_CHECK(std::ranges::count(known, name) == 1, "unknown model \"{}\"; expected {}{}", name,
                 fmt::join(known, ", "), io::did_you_mean(name, known));
      const nn::MetaScope meta;
      make_step_model(step_of(a, name));
    }
    for (const std::string& name : a.models) rows.push_back(rows_of(a, name));
  });
  bool holds = true;
  for (size_t m = 0; m < a.models.size(); ++m) {
    if (!a.json && m > 0) fmt::print("\n");
    holds = estimate_model(a, a.models[m], rows[m]) && holds;
  }
  if (!a.json) {
    fmt::print(
        "\nEach kind of memory at its own peak; peak: all together. gathered: parameters of other "
        "ranks; buckets: gradients on their way.\nAs on the CPU: {} batches of images that are "
        "ready ahead count among the activations, and what a kernel takes for itself is that of "
        "one thread.\n",
        a.step.batches_ahead);
  }
  WEFT_CHECK(holds, "estimate: a peak is more than {}% off what was measured", 100 * kTolerance);
  return 0;
}

}  // namespace

void add_estimate(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run, "estimate", "Count the memory and the traffic of a training step",
      kMeasuringCommands);
  command.group("Step");
  command.option("--model", a.models, kModelHelp, {.delimiter = ','});
  command.option("--batch-size,--batch", a.step.batch,
                 "Images, or windows of text, in the batch of each device; those that share a "
                 "layer or a pipeline count as one",
                 {.check = positive()});
  command.option(
      "--precision", a.precisions,
      fmt::format("What is computed in which format: {}; fp8:O1, fp8:O2 and fp8:O3 with a level",
                  train::precision_names()),
      {.delimiter = ','});
  command.option("--optimizer", a.step.optimizer,
                 fmt::format("{}", fmt::join(optim::optimizer_names(), ", ")),
                 {.check = one_of(optim::optimizer_names())});
  command.option("--image-size", a.step.options.image_size,
                 "Height and width of an image, in pixels",
                 {.check = positive(), .usual = "the model's own"});
  command.option("--classes", a.step.options.classes, "Number of classes",
                 {.check = positive(), .usual = "the model's own"});
  command.flag("--checkpoint-activations", a.step.options.checkpoint_activations,
               "Only rows with activations that are recomputed in the backward pass");

  command.group("Devices and sharding");
  add_devices_option(command, a.devices_text, "Number of devices");
  command.option("--strategy", a.strategies, "Strategies to count",
                 {.usual = "all that fit the model and the devices", .delimiter = ','});
  using dist::Settings;
  add_strategy_settings(command, a.step.strategy,
                        {{Settings::kShardSize, "the largest proper divisor of --devices"},
                         {Settings::kTensorParallel, "all under tp, 2 under fsdp+tp"},
                         {Settings::kSequenceParallel, ""},
                         {Settings::kParallelHead, ""},
                         {Settings::kPipelineStages, "as many as devices"},
                         {Settings::kMicroBatches, "two per stage"}});

  const std::vector<std::string> of_a_step = command.options();
  command.group("A model that is not here");
  command.option("--parameters", a.parameters,
                 "Count of parameters: says what `accelerate estimate-memory` says",
                 {.check = in_range(1.0, kMostParameters), .usual = "", .excludes = of_a_step});
  command.option("--buffers", a.buffer_bytes,
                 "Bytes of buffers, which Accelerate counts as a part of the model: 8192 of "
                 "bert-base-cased, whose 108310272 parameters it tells as 413.18 MiB with them",
                 {.check = in_range(0.0, kMostParameters), .needs = {"--parameters"}});
  command.option("--dtype", a.dtypes, "float32, float16, bfloat16, int8, int4",
                 {.delimiter = ',', .needs = {"--parameters"}});

  command.group("Output");
  command.flag("--check", a.check,
               "Take each step here, too, with devices as threads of the CPU, and fail where a "
               "peak is more than 5% off the allocator's",
               {.excludes = {"--parameters"}});
  command.flag("--json", a.json, kJsonLines);
}

}  // namespace weft::cli
