// weft bench sharding: what each strategy keeps on a rank and sends from it, measured and computed.
//
// Measured are bytes kept by the allocator (core/memory_account.h) and sent by the transport
// (dist/comm/transport.h), of every rank, in a step after the second, when buckets and the order of
// unsharding have settled. Computed is by the strategies' formulas (dist/strategy/strategy_kind.h).
#include "cli/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>

#include "cli/json_line.h"
#include "cli/run_program.h"
#include "cli/step/ranked_step.h"
#include "core/allocator.h"
#include "dist/comm/in_process.h"
#include "dist/comm/processes/launch.h"
#include "dist/comm/processes/mpi.h"
#include "dist/strategy/strategy_kind.h"
#include "io/progress.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;
using Devices = dist::StrategyKind::Devices;

std::vector<std::string> usual_communicators() {
  if (dist::mpi_library().empty()) return {"in-process"};
  return {"in-process", "mpi"};
}

struct Arguments {
  std::string model = "vit_b_16";
  std::vector<int> devices = {1, 2, 4};
  std::vector<std::string> strategies, communicators = usual_communicators();
  int64_t batch = 1;
  std::string precision = "fp32";
  models::ModelOptions options;
  dist::StrategyOptions settings;  // of one strategy each
  int steps = 1, deterministic = 0;
  bool json = false, check = false;
};

/// The largest deviation that --check allows, of bytes kept. Bytes sent are exact.
constexpr double kTolerance = 0.05;

RankedStepOptions step_options(const Arguments& a, const std::string& strategy, int devices) {
  return {.model = a.model,
          .strategy = dist::own_settings(strategy, a.settings),
          .batch = a.batch,
          .options = a.options,
          .precision = a.precision,
          .devices = devices,
          .deterministic = a.deterministic};
}

std::string kind_name(int kind) { return std::string(name(static_cast<MemoryKind>(kind))); }

/// Of one rank, in a step.
struct Measured {
  std::array<int64_t, kMemoryKinds> peaks{};
  int64_t sent = 0;
  int64_t padded_elements = 0;  // of the strategy's buckets
  double step_seconds = 0;
};

/// A few steps of AdamW as rank `world.rank()`, or, without a world, as a program of one process.
/// What all ranks measured, on every rank.
std::vector<Measured> measure(const RankedStepOptions& options, int steps,
                              const dist::CommunicatorPtr& world) {
  RankedStep step(options, world);
  step.run();
  step.run();
  if (world) world->barrier().wait();
  step.account().reset_peak();
  const auto sent = [&] { return world ? world->family_traffic().sent : 0; };
  // Barriers send nothing that is counted: their messages are empty.
  const int64_t before = sent();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step.run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / steps;
  std::vector<int64_t> mine = {(sent() - before) / steps, step.strategy().padded_elements()};
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    mine.push_back(step.account().bytes(static_cast<MemoryKind>(kind)).peak);
  }
  const int ranks = world ? world->size() : 1;
  const auto words = static_cast<int64_t>(mine.size());
  const Tensor all = Tensor::empty({ranks, words}, DType::i64);
  const Tensor in = Tensor::from(mine, {words});
  if (world) {
    world->all_gather(all, in).wait();
  } else {
    std::copy(mine.begin(), mine.end(), all.data<int64_t>());
  }
  std::vector<Measured> measured(ranks);
  for (int r = 0; r < ranks; ++r) {
    const int64_t* row = all.data<int64_t>() + r * words;
    measured[r] = {.sent = row[0], .padded_elements = row[1], .step_seconds = seconds};
    std::copy_n(row + 2, kMemoryKinds, measured[r].peaks.begin());
  }
  return measured;
}

ordered_json result_of(const Arguments& a, const std::string& strategy, int devices,
                       const std::string& communicator, const std::vector<Measured>& ranks) {
  const dist::StrategyKind& kind = dist::find_strategy(strategy);
  const RankedStepOptions options = step_options(a, strategy, devices);
  const dist::Sharing sharing = dist::sharing_of(filled(options, devices), devices);
  const std::vector<dist::ModelLayout> layouts = layouts_of_model(options, devices);
  ordered_json result = {{"strategy", strategy},
                         {"devices", devices},
                         {"communicator", communicator},
                         {"model", a.model},
                         {"batch", a.batch},
                         {"precision", a.precision},
                         {"parameters", layout_of_model(options).parameters},
                         {"shard_size", sharing.shard},
                         {"copies", sharing.replicas},
                         {"tensor_parallel", sharing.tensor},
                         {"sequence_parallel", sharing.deals_out_tokens},
                         {"parallel_head", sharing.cuts_head},
                         {"pipeline_stages", sharing.stages},
                         {"deterministic_reduce", a.deterministic},
                         {"formula", kind.state_formula()}};
  double worst = 0;
  bool sends_as_computed = true;
  int64_t most_sent = 0, most_sent_by_formula = 0;
  std::array<int64_t, kMemoryKinds> most{}, most_by_formula{};
  ordered_json by_rank = ordered_json::array();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Measured& measured = ranks[r];
    const dist::StateBytes formula = kind.state_bytes(layouts[r], sharing);
    int64_t kept = 0;
    most[0] = std::max(most[0], measured.peaks[0]);  // activations have no formula
    for (int k = 1; k < kMemoryKinds; ++k) {
      const int64_t got = measured.peaks[k], expected = formula[static_cast<MemoryKind>(k)];
      kept += got;
      most[k] = std::max(most[k], got);
      most_by_formula[k] = std::max(most_by_formula[k], expected);
      if (got == expected) continue;
      worst = std::max(worst, std::abs(static_cast<double>(got - expected)) /
                                  static_cast<double>(std::max<int64_t>(1, expected)));
    }
    const int64_t sent = kind.sent_bytes(layouts[r], sharing,
                                         {.rank = static_cast<int>(r),
                                          .images = images_of(options, sharing),
                                          .ddp_elements = measured.padded_elements});
    sends_as_computed = sends_as_computed && measured.sent == sent;
    most_sent = std::max(most_sent, measured.sent);
    most_sent_by_formula = std::max(most_sent_by_formula, sent);
    by_rank.push_back({{"kept", {{"measured", kept}, {"formula", formula.total()}}},
                       {"activations", measured.peaks[0]},
                       {"sent", {{"measured", measured.sent}, {"formula", sent}}}});
  }
  // The largest of any rank.
  int64_t total = 0, total_by_formula = 0;
  for (int k = 1; k < kMemoryKinds; ++k) {
    result["memory"][kind_name(k)] = {{"measured", most[k]}, {"formula", most_by_formula[k]}};
    total += most[k];
    total_by_formula += most_by_formula[k];
  }
  result["memory"]["total"] = {{"measured", total}, {"formula", total_by_formula}};
  result["memory"]["worst_deviation"] = worst;
  result["activations"] = most[0];
  result["sent"] = {
      {"measured", most_sent}, {"formula", most_sent_by_formula}, {"text", kind.sent_formula()}};
  result["ranks"] = by_rank;
  result["step_seconds"] = ranks[0].step_seconds;
  result["agrees"] = worst <= kTolerance && sends_as_computed;
  return result;
}

/// Whether a strategy goes together with the model and so many devices.
bool is_possible(const Arguments& a, const std::string& strategy, int devices) {
  try {
    const RankedStepOptions options = step_options(a, strategy, devices);
    layouts_of_model(options, devices);
    if (a.deterministic == 0) return true;
    const int data = dist::sharing_of(options.strategy, devices).data_devices();
    return dist::find_strategy(strategy).fixes_order() && a.deterministic % data == 0;
  } catch (const Error&) {
    return false;
  }
}

/// The strategies asked for, or all, as far as they go together with a number of devices.
std::vector<std::string> strategies_for(const Arguments& a, int devices,
                                        const std::string& communicator) {
  std::vector<std::string> result;
  for (const std::string& name : a.strategies.empty() ? dist::strategy_names() : a.strategies) {
    const Devices its_devices = dist::find_strategy(name).devices;
    if (its_devices == Devices::kOne && devices > 1) continue;
    if (its_devices == Devices::kThreads && communicator != "in-process") continue;
    if (a.strategies.empty() && !is_possible(a, name, devices)) continue;
    result.push_back(name);
  }
  return result;
}

std::vector<ordered_json> run_in_process(const Arguments& a, int devices) {
  std::vector<ordered_json> results;
  for (const std::string& strategy : strategies_for(a, devices, "in-process")) {
    const RankedStepOptions options = step_options(a, strategy, devices);
    std::vector<Measured> measured;
    if (dist::find_strategy(strategy).devices == Devices::kThreads) {
      measured = measure(options, a.steps, nullptr);
    } else {
      dist::run_ranks(devices, [&](dist::Communicator& world) {
        // The strategies keep their world; this one lives until the ranks have ended.
        const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
        const std::vector<Measured> all = measure(options, a.steps, handle);
        if (world.rank() == 0) measured = all;
      });
    }
    results.push_back(result_of(a, strategy, devices, "in-process", measured));
  }
  return results;
}

/// As a rank under mpirun: rank 0 prints a line for each strategy.
int run_as_rank(const Arguments& a) {
  const dist::CommunicatorPtr world = dist::make_mpi_world();
  for (const std::string& strategy : strategies_for(a, world->size(), "mpi")) {
    const std::vector<Measured> measured =
        measure(step_options(a, strategy, world->size()), a.steps, world);
    if (world->rank() > 0) continue;
    print_json(result_of(a, strategy, world->size(), "mpi", measured));
    std::fflush(stdout);
  }
  return 0;
}

std::vector<ordered_json> run_under_mpi(const Arguments& a, int ranks) {
  std::vector<std::string> words = dist::mpirun_command({.ranks = ranks});
  const auto add = [&](const std::string& option, const auto& value) {
    words.insert(words.end(), {option, fmt::format("{}", value)});
  };
  words.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  words.insert(words.end(), {"bench", "sharding"});
  add("--model", a.model);
  add("--batch-size", a.batch);
  add("--precision", a.precision);
  add("--steps", a.steps);
  if (a.deterministic > 0) add("--deterministic-reduce", a.deterministic);
  if (a.options.image_size) add("--image-size", *a.options.image_size);
  if (a.options.layers) add("--layers", *a.options.layers);
  const dist::StrategyOptions& settings = a.settings;
  if (settings.shard_size > 0) add("--shard-size", settings.shard_size);
  if (settings.tensor_parallel > 0) add("--tensor-parallel", settings.tensor_parallel);
  if (settings.pipeline_stages > 0) add("--pipeline-stages", settings.pipeline_stages);
  if (settings.sequence_parallel) words.push_back("--sequence-parallel");
  if (settings.parallel_head) words.push_back("--parallel-head");
  for (const std::string& strategy : a.strategies) add("--strategy", strategy);
  allocator(Device{}).release_pool();  // the ranks need the memory that those in process had
  std::vector<ordered_json> results;
  const int status = run_program(words, [&](const std::string& line) {
    if (line.starts_with("{")) results.push_back(ordered_json::parse(line));
  });
  WEFT_CHECK(status == 0, "bench sharding: {} ranks under mpirun failed; see above", ranks);
  return results;
}

void print_row(io::Table& table, const ordered_json& r) {
  const auto megabytes = [](const ordered_json& bytes) {
    return fmt::format("{:.2f}", 1e-6 * bytes.get<double>());
  };
  std::vector<std::string> cells = {r.at("strategy"), r.at("devices").dump(), r.at("communicator")};
  const ordered_json &memory = r.at("memory"), &sent = r.at("sent");
  for (int k = 1; k < kMemoryKinds; ++k)
    cells.push_back(megabytes(memory.at(kind_name(k)).at("measured")));
  const ordered_json& total = memory.at("total");
  cells.insert(
      cells.end(),
      {megabytes(total.at("measured")), megabytes(total.at("formula")),
       fmt::format("{:.2f}%", 100 * memory.at("worst_deviation").get<double>()),
       megabytes(sent.at("measured")),
       sent.at("measured") == sent.at("formula") ? "equal" : megabytes(sent.at("formula"))});
  table.row(cells);
}

int run(const Arguments& a) {
  as_usage([&] {
    for (const std::string& name : a.strategies) {
      const bool is_alone = dist::find_strategy(name).devices == Devices::kOne;
      for (int ranks : a.devices) {
        if (!is_alone) dist::sharing_of(dist::own_settings(name, a.settings), ranks);
      }
    }
  });
  if (dist::is_mpi_rank()) return run_as_rank(a);
  if (!a.json) {
    const dist::ModelLayout layout = layout_of_model(step_options(a, "single", 1));
    fmt::print(
        "{}: {} parameters, {} units; MB kept at the peak and sent in a step by the rank with the "
        "most\n\n",
        a.model, layout.parameters, layout.units.size() + (layout.root() > 0));
  }
  using Align = io::Table::Align;
  std::vector<io::Table::Column> columns = {
      {"strategy", 8, Align::kLeft}, {"N", 3}, {"ranks as", 10, Align::kLeft}};
  for (int k = 1; k < kMemoryKinds; ++k) {
    columns.push_back({kind_name(k), 10});
  }
  columns.insert(columns.end(),
                 {{"total", 9}, {"formula", 9}, {"worst", 6}, {"sent", 9}, {"formula", 9}});
  io::Table table(columns);
  bool agrees = true;
  std::set<std::string> formulas;
  for (const std::string& communicator : a.communicators) {
    for (int ranks : a.devices) {
      const auto results =
          communicator == "mpi" ? run_under_mpi(a, ranks) : run_in_process(a, ranks);
      for (const ordered_json& result : results) {
        agrees = agrees && result.at("agrees");
        formulas.insert(result.at("strategy"));
        if (a.json) {
          print_json(result);
          std::fflush(stdout);
        } else {
          print_row(table, result);
        }
      }
    }
  }
  if (!a.json) {
    fmt::print("\n");
    for (const auto& kind : dist::strategies()) {
      if (!formulas.contains(kind->name)) continue;
      fmt::print("{:8}  keeps {}\n{:8}  sends {}\n", kind->name, kind->state_formula(), "",
                 kind->sent_formula());
    }
  }
  WEFT_CHECK(agrees || !a.check || a.deterministic > 0,
             "bench sharding: a measurement is more than {}% from its formula, "
             "or other bytes were sent",
             100 * kTolerance);
  return 0;
}

}  // namespace

void add_bench_sharding(Command& bench, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(bench, action, run, "sharding",
                             "Measure each strategy's memory and traffic beside its formulas");
  command.group("Step");
  command.option("--model", a.model, kModelHelp);
  command.option("--devices", a.devices, "Numbers of ranks to measure with",
                 {.check = in_range(1, 1024), .delimiter = ','});
  command.option("--strategy", a.strategies, "Strategies to measure",
                 {.usual = "all that fit the model and the ranks", .delimiter = ','});
  command.option("--communicator", a.communicators,
                 "What the ranks communicate through: in-process (threads), mpi (processes)",
                 {.check = one_of({"in-process", "mpi"}), .delimiter = ','});
  command.option("--batch-size,--batch", a.batch, "Images in the batch of each device",
                 {.check = positive()});
  command.option("--precision", a.precision,
                 "Format of matrix products: fp32 or bf16, in which sharded weights and tp's "
                 "activations then travel",
                 {.check = one_of({"fp32", "bf16"})});
  command.option("--image-size", a.options.image_size, "Height and width of an image, in pixels",
                 {.check = positive(), .usual = "the model's own"});
  command.option("--layers", a.options.layers, "Number of transformer layers",
                 {.check = positive(), .usual = "the model's own"});

  using dist::Settings;
  add_strategy_settings(command, a.settings,
                        {{Settings::kShardSize, "the largest proper divisor of --devices"},
                         {Settings::kTensorParallel, "all under tp, 2 under fsdp+tp"},
                         {Settings::kSequenceParallel, ""},
                         {Settings::kParallelHead, ""},
                         {Settings::kPipelineStages, "as many as devices"}});
  command.option("--deterministic-reduce", a.deterministic,
                 "Micro-batches of a batch whose gradients are added in one fixed tree, to see "
                 "what that costs; the formulas stay those of a step without",
                 {.check = positive(), .usual = "off"});

  command.group("Measurement and output");
  command.option("--steps", a.steps, "Number of measured steps", {.check = positive()});
  command.flag("--json", a.json, kJsonLines);
  command.flag("--check", a.check,
               "Fail where memory is more than 5% off its formula, or the bytes sent are not those "
               "of theirs");
}

}  // namespace weft::cli
