// Measured where it happens: bytes kept by the allocator (core/memory_account.h), bytes sent by the
// transport (dist/transport.h). Computed by the formulas of dist/cost.h, which know the model's
// sizes and the number of ranks alone. Peaks are of a step after the second, when buckets and the
// order of gathering have settled.
#include "cli/bench_sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/ranked_step.h"
#include "dist/cost.h"
#include "dist/in_process.h"
#include "dist/launch.h"
#include "dist/mpi.h"
#include "train/progress.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string model = "vit_b_16";
  std::vector<int> devices = {1, 2, 4};
  std::vector<std::string> strategies, communicators = {"in-process", "mpi"};
  int64_t batch = 1, image_size = 0, layers = 0;
  int shard_size = 0, steps = 1;
  bool json = false, check = false;
};

/// The largest deviation that --check allows, of bytes kept. Bytes sent are exact.
constexpr double kTolerance = 0.05;

RankedStepOptions step_options(const Arguments& a, const std::string& strategy = "single") {
  RankedStepOptions options{
      .model = a.model, .strategy = strategy, .batch = a.batch, .shard_size = a.shard_size};
  if (a.image_size > 0) options.options.image_size = a.image_size;
  if (a.layers > 0) options.options.layers = a.layers;
  return options;
}

struct Measured {
  std::array<int64_t, kMemoryKinds> peaks{};
  int64_t sent = 0;             // by rank 0 in a step
  int64_t padded_elements = 0;  // of the strategy's buckets
  double step_seconds = 0;
};

/// A few steps of AdamW as rank `world.rank()`. Every rank returns the largest peaks of any.
Measured measure(const Arguments& a, const std::string& strategy_name,
                 const dist::CommunicatorPtr& world) {
  RankedStep step(step_options(a, strategy_name), world);
  step.run();
  step.run();
  world->barrier().wait();
  step.account().reset_peak();
  Measured measured{.padded_elements = step.strategy().padded_elements()};
  // Barriers send nothing that is counted: their messages are empty.
  const int64_t before = world->family_traffic().sent;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < a.steps; ++i) step.run();
  measured.step_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / a.steps;
  measured.sent = (world->family_traffic().sent - before) / a.steps;
  std::vector<int64_t> peaks;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    peaks.push_back(step.account().bytes(static_cast<MemoryKind>(kind)).peak);
  }
  const Tensor all = Tensor::from(peaks, {kMemoryKinds});
  world->all_reduce(all, dist::ReduceOp::kMax).wait();
  std::copy_n(all.data<int64_t>(), kMemoryKinds, measured.peaks.begin());
  return measured;
}

ordered_json result_of(const Arguments& a, const std::string& strategy, int ranks,
                       const std::string& communicator, const dist::ModelLayout& layout,
                       const Measured& measured) {
  const dist::Sharing sharing = dist::sharing_of(strategy, ranks, a.shard_size);
  const dist::StateBytes formula = dist::state_bytes(strategy, layout, sharing);
  ordered_json result = {{"strategy", strategy},
                         {"devices", ranks},
                         {"communicator", communicator},
                         {"model", a.model},
                         {"batch", a.batch},
                         {"parameters", layout.parameters},
                         {"shard_size", sharing.shard},
                         {"formula", dist::state_formula(strategy)}};
  double worst = 0;
  int64_t total = 0;
  for (int k = 1; k < kMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    const int64_t got = measured.peaks[k], expected = formula[kind];
    total += got;
    result["memory"][std::string(name(kind))] = {{"measured", got}, {"formula", expected}};
    if (got == expected) continue;
    worst = std::max(worst, std::abs(static_cast<double>(got - expected)) /
                                static_cast<double>(std::max<int64_t>(1, expected)));
  }
  const int64_t sent =
      dist::sent_bytes(strategy, layout, sharing, strategy == "ddp" ? measured.padded_elements : 0);
  result["memory"]["total"] = {{"measured", total}, {"formula", formula.total()}};
  result["memory"]["worst_deviation"] = worst;
  result["activations"] = measured.peaks[0];
  result["sent"] = {
      {"measured", measured.sent}, {"formula", sent}, {"text", dist::sent_formula(strategy)}};
  result["step_seconds"] = measured.step_seconds;
  result["agrees"] = worst <= kTolerance && measured.sent == sent;
  return result;
}

bool has_formula(const std::string& strategy) {
  try {
    dist::state_formula(strategy);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The strategies asked for, or all that can be held against a formula, as far as they go together
/// with a number of ranks.
std::vector<std::string> strategies_for(const Arguments& a, int ranks) {
  std::vector<std::string> result;
  for (const std::string& name : a.strategies.empty() ? dist::strategy_names() : a.strategies) {
    if (a.strategies.empty() && !has_formula(name)) continue;
    if (name == "single" && ranks > 1) continue;
    result.push_back(name);
  }
  return result;
}

std::vector<ordered_json> run_in_process(const Arguments& a, int ranks,
                                         const dist::ModelLayout& layout) {
  std::vector<ordered_json> results;
  for (const std::string& strategy : strategies_for(a, ranks)) {
    Measured measured;
    dist::run_ranks(ranks, [&](dist::Communicator& world) {
      // The strategies keep their world; this one lives until the ranks have ended.
      const dist::CommunicatorPtr handle(&world, [](dist::Communicator*) {});
      const Measured mine = measure(a, strategy, handle);
      if (world.rank() == 0) measured = mine;
    });
    results.push_back(result_of(a, strategy, ranks, "in-process", layout, measured));
  }
  return results;
}

/// As a rank under mpirun: rank 0 prints a line for each strategy.
int run_as_rank(const Arguments& a, const dist::ModelLayout& layout) {
  const dist::CommunicatorPtr world = dist::make_mpi_world();
  for (const std::string& strategy : strategies_for(a, world->size())) {
    const Measured measured = measure(a, strategy, world);
    if (world->rank() > 0) continue;
    fmt::print("{}\n", result_of(a, strategy, world->size(), "mpi", layout, measured).dump());
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
  add("--batch", a.batch);
  add("--steps", a.steps);
  if (a.image_size > 0) add("--image-size", a.image_size);
  if (a.layers > 0) add("--layers", a.layers);
  if (a.shard_size > 0) add("--shard-size", a.shard_size);
  for (const std::string& strategy : a.strategies) add("--strategy", strategy);
  std::string command;
  for (const std::string& word : words) {
    std::string quoted = word;
    for (size_t at = 0; (at = quoted.find('\'', at)) != std::string::npos; at += 4) {
      quoted.replace(at, 1, "'\\''");
    }
    command += fmt::format("'{}' ", quoted);
  }
  std::FILE* pipe = ::popen(command.c_str(), "r");
  WEFT_CHECK(pipe, "bench sharding: cannot start mpirun");
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  const int status = ::pclose(pipe);
  WEFT_CHECK(status == 0, "bench sharding: {} ranks under mpirun failed; see above", ranks);
  std::vector<ordered_json> results;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{")) results.push_back(ordered_json::parse(line));
  }
  return results;
}

std::string megabytes(const ordered_json& bytes) {
  return fmt::format("{:.2f}", 1e-6 * bytes.get<double>());
}

void print_row(train::Table& table, const ordered_json& r) {
  std::vector<std::string> cells = {r.at("strategy"), std::to_string(r.at("devices").get<int>()),
                                    r.at("communicator")};
  const ordered_json& memory = r.at("memory");
  for (int k = 1; k < kMemoryKinds; ++k) {
    cells.push_back(
        megabytes(memory.at(std::string(name(static_cast<MemoryKind>(k)))).at("measured")));
  }
  cells.push_back(megabytes(memory.at("total").at("measured")));
  cells.push_back(megabytes(memory.at("total").at("formula")));
  cells.push_back(fmt::format("{:.2f}%", 100 * memory.at("worst_deviation").get<double>()));
  cells.push_back(megabytes(r.at("sent").at("measured")));
  cells.push_back(r.at("sent").at("measured") == r.at("sent").at("formula")
                      ? "equal"
                      : megabytes(r.at("sent").at("formula")));
  table.row(cells);
}

int run(const Arguments& a) {
  as_usage([&] {
    for (const std::string& name : a.strategies) {
      dist::state_formula(name);
      for (int ranks : a.devices) {
        if (name != "single") dist::validate_strategy({name, a.shard_size}, ranks);
      }
    }
  });
  const dist::ModelLayout layout = layout_of_model(step_options(a));
  if (dist::is_mpi_rank()) return run_as_rank(a, layout);
  if (!a.json) {
    fmt::print("{}: {} parameters, {} units; MB kept by a rank at the peak, and sent in a step\n\n",
               a.model, layout.parameters, layout.units.size() + (layout.root() > 0));
  }
  using Align = train::Table::Align;
  std::vector<train::Table::Column> columns = {
      {"strategy", 8, Align::kLeft}, {"N", 3}, {"ranks as", 10, Align::kLeft}};
  for (int k = 1; k < kMemoryKinds; ++k) {
    columns.push_back({std::string(name(static_cast<MemoryKind>(k))), 10});
  }
  columns.insert(columns.end(),
                 {{"total", 9}, {"formula", 9}, {"worst", 6}, {"sent", 9}, {"formula", 9}});
  std::optional<train::Table> table;
  if (!a.json) table.emplace(columns, stdout);
  bool agrees = true;
  for (const std::string& communicator : a.communicators) {
    for (int ranks : a.devices) {
      const auto results =
          communicator == "mpi" ? run_under_mpi(a, ranks) : run_in_process(a, ranks, layout);
      for (const ordered_json& result : results) {
        agrees = agrees && result.at("agrees");
        if (a.json) {
          fmt::print("{}\n", result.dump());
          std::fflush(stdout);
        } else {
          print_row(*table, result);
        }
      }
    }
  }
  WEFT_CHECK(agrees || !a.check,
             "bench sharding: a measurement is more than {}% from its formula, "
             "or other bytes were sent",
             100 * kTolerance);
  return 0;
}

}  // namespace

void add_bench_sharding(CLI::App& bench, Action& action) {
  CLI::App& command = *bench.add_subcommand(
      "sharding", "Memory and traffic of each strategy, measured and by its formula");
  const auto a = std::make_shared<Arguments>();
  command.add_option("--model", a->model, "A model's name")->capture_default_str();
  command.add_option("--devices", a->devices, "Numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--strategy", a->strategies, "Default: all that have a formula")
      ->delimiter(',');
  command.add_option("--communicator", a->communicators, "in-process, mpi")
      ->delimiter(',')
      ->check(CLI::IsMember({"in-process", "mpi"}))
      ->capture_default_str();
  command.add_option("--shard-size", a->shard_size, "Of hsdp; default: the largest proper divisor")
      ->check(CLI::PositiveNumber);
  command.add_option("--batch", a->batch, "Images per rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--image-size", a->image_size, "Default: the model's own")
      ->check(CLI::PositiveNumber);
  command.add_option("--layers", a->layers, "Default: the model's own")->check(CLI::PositiveNumber);
  command.add_option("--steps", a->steps, "Measured steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--json", a->json, "One JSON object a line");
  command.add_flag("--check", a->check,
                   "Fail where memory is more than 5% from its formula, or traffic differs");
  command.callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace weft::cli
