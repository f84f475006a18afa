#include "kernels/testing/op_main.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "io/command_line.h"
#include "kernels/device/probe.h"
#include "kernels/instruction_set.h"
#include "kernels/plugins/load.h"
#include "kernels/testing/bench.h"
#include "kernels/testing/emulation.h"
#include "kernels/testing/lab_tables.h"

namespace weft::kernels {
namespace {

/// The emulator needs some 100 ns for what a GPU does in no time.
bool takes_long_to_emulate(const Cost& cost) { return cost.bytes > 1 << 20 || cost.flops > 4e6; }

struct CheckOptions {
  std::string variant, only_case;  // empty: all
  bool small = false;              // no cases that are benchmarked too
  bool as_json = false;
  bool traffic = false;              // count how memory is used
  std::optional<DeviceType> device;  // its variants alone

  int few = 0;  // cases of each variant; 0: all

  bool takes(const CaseEntry& entry) const {
    if (!only_case.empty()) return entry.name == only_case;
    return !entry.is_large && (!small || !entry.is_timed());
  }
  bool takes(const OpTable::Row& row) const {
    return (variant.empty() || row.name == variant) && (!device || row.device == *device);
  }
  bool is_everything() const { return variant.empty() && only_case.empty() && !small && few == 0; }
};

/// The cases in their order; where a few of each variant are asked for, in one that mixes shapes
/// and dtypes, the same in every run.
std::vector<const CaseEntry*> cases_of(const OpTable& table, const CheckOptions& options) {
  std::vector<const CaseEntry*> cases;
  for (const CaseEntry& entry : table.cases) {
    if (options.takes(entry)) cases.push_back(&entry);
  }
  if (options.few > 0) std::ranges::sort(cases, {}, [](const CaseEntry* c) { return c->seed; });
  return cases;
}

int check(const OpTable& table, const CheckOptions& options) {
  const std::string& only_variant = options.variant;
  const bool emulated = runtime::is_emulated();
  CheckReport report(table, options.as_json, !only_variant.empty() || !options.only_case.empty());
  std::vector<int> runs(table.variants.size(), 0);
  std::vector<bool> no_device(table.variants.size(), false);
  for (const CaseEntry* const listed : cases_of(table, options)) {
    const CaseEntry& entry = *listed;
    const bool is_long = emulated && options.only_case.empty() && takes_long_to_emulate(entry.cost);
    std::vector<Expected> expected;
    bool any_ran = false;
    for (size_t v = 0; v < table.variants.size(); ++v) {
      const OpTable::Row& variant = table.variants[v];
      if (!options.takes(variant)) continue;
      if (options.few > 0 && runs[v] == options.few) continue;
      if (emulated && variant.device == DeviceType::cuda && options.only_case.empty() &&
          (is_long || variant.name.find(entry.emulated_on) == std::string::npos)) {
        report.skip();
        continue;
      }
      if (expected.empty()) expected = entry.expected();
      const CheckResult result = check_case(table, entry, variant.name, expected);
      if (result.ran == Ran::kNoDevice) {
        no_device[v] = true;
        report.skip();
      }
      if (result.ran != Ran::kYes && result.failure.empty()) continue;
      any_ran = true;
      ++runs[v];
      report.add(entry, variant, result, expected);
      if (options.traffic && variant.device == DeviceType::cuda && result.failure.empty()) {
        Inputs in(entry.seed);
        const auto run = entry.make(in);
        count_traffic(true);
        run(variant.name);
        count_traffic(false);
      }
    }
    // Every case has a variant on the CPU.
    if (!any_ran && options.few == 0 && only_variant.empty() &&
        options.device != DeviceType::cuda) {
      report.fault(entry.name + ": no variant fits");
    }
  }
  for (size_t v = 0; v < table.variants.size(); ++v) {
    const std::string& variant = table.variants[v].name;
    if (no_device[v] && !options.as_json) {
      std::printf("SKIPPED: %s needs a CUDA device\n", variant.c_str());
    }
    if (runs[v] > 0 || no_device[v] || !options.is_everything()) continue;
    if (!options.takes(table.variants[v])) continue;
    report.fault(variant + ": no case fits this variant");
  }
  if (options.traffic) report.add_traffic(take_traffic());
  return report.finish() ? 0 : 1;
}

int usage_error(const std::string& message) {
  std::fprintf(stderr, "weft: error: %s\n", message.c_str());
  return 2;
}

struct Arguments {
  CheckOptions check;
  BenchOptions bench;
  std::string plugin, plugin_variant, instruction_set, checked_device, device, dtype, gpu,
      tensor_core;
  int tile = 0, blocks = 0;
};

/// What to time; throws Error for arguments that make no sense.
BenchPlan bench_plan(const OpTable& table, const Arguments& a) {
  BenchOptions options = a.bench;
  if (!a.dtype.empty()) options.dtype = parse_dtype(a.dtype);
  WEFT_CHECK(is_floating(options.dtype), "bench: --dtype {}: expected a floating dtype", a.dtype);
  if (!a.device.empty()) {
    options.device = parse_device(a.device);
    WEFT_CHECK(options.device.type == DeviceType::cpu || !runtime::is_emulated(),
               "bench: the emulated device has no speed to measure; --device cpu has");
    require_usable(options.device);
  } else if (runtime::device_count() > 0 && !runtime::is_emulated()) {
    options.device = {DeviceType::cuda, 0};
  }
  const std::string& asked = options.variant.empty() ? a.plugin_variant : options.variant;
  const auto row = std::ranges::find(table.variants, asked, &OpTable::Row::name);
  WEFT_CHECK(row == table.variants.end() || row->device == options.device.type,
             "bench: {} is for {}, and what is timed is {}{}", asked, name(row->device),
             options.device,
             options.device.type == DeviceType::cuda ? ": add --device cpu"
             : runtime::is_emulated()
                 ? "; the emulated device has no speed, check --traffic counts its accesses"
                 : "");
  return plan_bench(table, options);
}

/// The op's table with the plugin's row, or that of the op that the plugin brings.
OpTable table_with_plugin(const std::string& op, OpTable (*table)(), Arguments& a) {
  if (a.plugin.empty()) {
    WEFT_CHECK(table, "--plugin is missing: a folder that brings an op of its own");
    return table();
  }
  const std::filesystem::path file = a.plugin;
  const Plugin& plugin = load_plugin(file);
  if (!table) {
    WEFT_CHECK(plugin.table, "{0} adds a variant to {1}: weft kernels check {1} --plugin {0}",
               a.plugin, plugin.op);
    return plugin.table();
  }
  WEFT_CHECK(!plugin.table, "{0} brings an op of its own, {1}: weft kernels check --plugin {0}",
             a.plugin, plugin.op);
  WEFT_CHECK(plugin.op == op, "{} adds a variant to {}, not to {}", a.plugin, plugin.op, op);
  a.plugin_variant = plugin.name;
  if (a.check.variant.empty()) a.check.variant = plugin.name;
  return table();
}

}  // namespace

int run_op_main(const std::string& op, OpTable (*make_table)(), int argc, char** argv) {
  Arguments a;
  io::Command program(op, "Lists, checks or times the variants of " + op);
  io::Command& list_command =
      program.subcommand("list", "List the variants, and how many cases each of them takes");
  io::Command& check_command =
      program.subcommand("check", "Compare every variant with the reference on every case");
  check_command.option("--variant", a.check.variant, "The variant to check", {.usual = "all"});
  check_command.option("--case", a.check.only_case, "The case to check it on", {.usual = "all"});
  check_command.option("--device", a.checked_device,
                       "The device whose variants are checked: cpu, cuda or emulated",
                       {.takes = "DEVICE", .usual = "all that there are"});
  check_command.flag("--small", a.check.small, "Leave out the cases that bench times");
  check_command.option("--few", a.check.few,
                       "Check each variant on this many cases, always the same",
                       {.check = io::positive(), .takes = "N", .usual = "all"});
  check_command.flag("--json", a.check.as_json, "Print JSON objects, one a line");
  check_command.option(
      "--instruction-set", a.instruction_set,
      "The best instruction set that CPU kernels may use: avx512, avx2 or baseline",
      {.usual = "the CPU's"});
  check_command.flag("--traffic", a.check.traffic,
                     "Count bank conflicts and sectors of every access to memory; on the "
                     "emulated device alone");
  check_command.option(
      "--gpu", a.gpu,
      "Give the emulated device the limits of this GPU: a100, a10, 4090, h100, h200, "
      "b200 or 5090",
      {.takes = "GPU", .usual = "WEFT_EMULATED_GPU, else h100"});
  check_command.option(
      "--tensor-core", a.tensor_core,
      "Compute matrix products with the bits of this GPU's tensor cores: a100, ada, "
      "h100 or b200; on the emulated device alone",
      {.takes = "GPU", .usual = "sums in f32"});
  io::Command& bench_command =
      program.subcommand("bench", "Time the variants on the timed cases, from a cold cache");
  bench_command.option("--variant", a.bench.variant, "The variant to time, beside the vendor's",
                       {.usual = "all"});
  bench_command.option("--shape", a.bench.shapes,
                       "Cases with this text in their names; of gemm also any shape, as 512x512x64",
                       {.usual = "all timed cases"});
  bench_command.option("--dtype", a.dtype, "Format of the operands of a shape that is no case",
                       {.takes = "DTYPE", .usual = "f32"});
  bench_command.option("--device", a.device, "Where to compute: cpu, cuda or cuda:N",
                       {.takes = "DEVICE", .usual = "cuda where there is a GPU, else cpu"});
  bench_command.option("--samples", a.bench.samples, "Samples of each variant on each case",
                       {.check = io::in_range(1, 100000)});
  bench_command.option("--seconds", a.bench.seconds,
                       "Seconds after which a variant takes no more samples of a case",
                       {.check = io::positive()});
  bench_command.option(
      "--roofline", a.bench.roofline,
      "Rates of the device, as the roofline program printed them, to tell shares of",
      {.takes = "FILE", .usual = "none, and no shares"});
  bench_command.flag("--json", a.bench.as_json, "Print JSON objects, one a line");
  for (io::Command* const command : {&check_command, &bench_command}) {
    command->option("--tile", a.tile,
                    "Have the variant that chooses among widths of a tile take this one",
                    {.takes = "COLUMNS", .usual = "the variant's choice"});
    command->option("--cluster", a.blocks,
                    "Have it launch clusters of this many blocks, where tiles allow it",
                    {.check = io::in_range(1, 2), .takes = "BLOCKS", .usual = "its choice"});
  }
  for (io::Command* const command : {&list_command, &check_command, &bench_command}) {
    command->option("--plugin", a.plugin,
                    "A variant outside the tree: a .cc or .cu file, which is compiled, or a "
                    "shared object; check then takes this one",
                    {.takes = "FILE"});
  }
  try {
    if (const auto text = program.parse(argc, argv)) {
      std::printf("%s", text->c_str());
      return 0;
    }
  } catch (const io::ParseError& error) {
    return usage_error(fmt::format("{}: {}", op, error.what()));
  }
  apply_instruction_set_of_environment();
  if (!a.instruction_set.empty()) {
    try {
      limit_instruction_set(a.instruction_set);
    } catch (const Error& error) {
      // An older machine: it has tested what it can run.
      std::printf("SKIPPED: %s\n", error.what());
      return 0;
    }
  }
  OpTable table;
  try {
    table = table_with_plugin(op, make_table, a);
  } catch (const Error& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return 1;
  }
  for (const std::string& variant : {a.check.variant, a.bench.variant}) {
    if (variant.empty() || std::ranges::count(table.variants, variant, &OpTable::Row::name) > 0) {
      continue;
    }
    std::string known;
    for (const OpTable::Row& row : table.variants) {
      known += (known.empty() ? "" : ", ") + row.name;
    }
    return usage_error(
        fmt::format("{} has no variant \"{}\": expected one of {}", table.name, variant, known));
  }
  if (list_command.is_parsed()) {
    print_variants(table);
    return 0;
  }
  if ((a.check.traffic || !a.gpu.empty() || !a.tensor_core.empty()) && !runtime::is_emulated()) {
    return usage_error(
        fmt::format("check {}: for the emulated device alone", a.check.traffic  ? "--traffic"
                                                               : !a.gpu.empty() ? "--gpu"
                                                                                : "--tensor-core"));
  }
  if (a.tile != 0 || a.blocks != 0) {
    if (table.tiles.empty()) {
      return usage_error(fmt::format("{}: {} has no tiles to choose among",
                                     a.tile != 0 ? "--tile" : "--cluster", table.name));
    }
    if (a.tile != 0 && std::ranges::count(table.tiles, a.tile) == 0) {
      return usage_error(
          fmt::format("--tile {}: expected one of {}", a.tile, fmt::join(table.tiles, ", ")));
    }
    table.force_tile(a.tile, a.blocks);
  }
  if (!a.checked_device.empty()) {
    try {
      a.check.device = parse_device(a.checked_device).type;
    } catch (const Error& error) {
      return usage_error(fmt::format("check --device: {}", error.what()));
    }
  }
  try {
    if (!a.gpu.empty()) use_gpu(a.gpu);
  } catch (const Error& error) {
    return usage_error(fmt::format("check {}", error.what()));
  }
  try {
    use_tensor_core(a.tensor_core);
  } catch (const Error& error) {
    return usage_error(fmt::format("check --tensor-core: {}", error.what()));
  }
  if (!bench_command.is_parsed()) return check(table, a.check);
  BenchPlan plan;
  try {
    plan = bench_plan(table, a);
  } catch (const Error& error) {
    return usage_error(error.what());
  }
  try {
    run_bench(table, plan);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return 1;
  }
}

}  // namespace weft::kernels
