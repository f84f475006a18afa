#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>

#include "kernels/instruction_set.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {
namespace {

/// The emulator needs some 100 ns for what a GPU does in no time.
bool takes_long_to_emulate(const Cost& cost) { return cost.bytes > 1 << 20 || cost.flops > 4e6; }

struct Selection {
  std::string variant, only_case;  // empty: all
  bool small = false;              // no cases that are benchmarked too

  bool takes(const CaseEntry& entry) const {
    const bool is_small = entry.cost.flops == 0 && entry.cost.bytes == 0;
    return (only_case.empty() || entry.name == only_case) && (!small || is_small);
  }
  bool is_everything() const { return variant.empty() && only_case.empty() && !small; }
};

int check(const OpTable& table, const Selection& selection) {
  int checked = 0, failed = 0;
  const bool emulated = runtime::is_emulated();
  std::vector<bool> variant_ran(table.variants.size(), false), no_device = variant_ran;
  for (const CaseEntry& entry : table.cases) {
    if (!selection.takes(entry)) continue;
    if (emulated && selection.only_case.empty() && takes_long_to_emulate(entry.cost)) continue;
    const std::vector<Expected> expected = entry.expected();
    bool any_ran = false;
    for (size_t v = 0; v < table.variants.size(); ++v) {
      const std::string& variant = table.variants[v].name;
      if (!selection.variant.empty() && variant != selection.variant) continue;
      if (emulated && selection.variant.empty() && table.variants[v].device == DeviceType::cpu) {
        variant_ran[v] = any_ran = true;
        continue;
      }
      const CheckResult result = check_case(table, entry, variant, expected);
      if (result.ran == Ran::no_device) no_device[v] = true;
      if (result.ran != Ran::yes && result.failure.empty()) continue;
      any_ran = true;
      variant_ran[v] = true;
      ++checked;
      if (result.failure.empty()) continue;
      ++failed;
      std::printf("FAILED %s %s %s (seed %016lx): %s\n", table.name.c_str(), variant.c_str(),
                  entry.name.c_str(), entry.seed, result.failure.c_str());
    }
    if (!any_ran && selection.variant.empty()) {
      ++failed;
      std::printf("FAILED %s %s: no variant fits\n", table.name.c_str(), entry.name.c_str());
    }
  }
  for (size_t v = 0; v < table.variants.size(); ++v) {
    const std::string& variant = table.variants[v].name;
    if (no_device[v]) std::printf("SKIPPED: %s needs a CUDA device\n", variant.c_str());
    if (variant_ran[v] || no_device[v] || !selection.is_everything()) continue;
    ++failed;
    std::printf("FAILED %s %s: no case fits this variant\n", table.name.c_str(), variant.c_str());
  }
  std::printf("%s: %d checked, %d failed\n", table.name.c_str(), checked, failed);
  return failed == 0 && checked > 0 ? 0 : 1;
}

int bench(const OpTable& table, bool smoke, int argc, char** argv) {
  int registered = 0;
  for (const CaseEntry& entry : table.cases) {
    if (entry.cost.flops == 0 && entry.cost.bytes == 0) continue;
    for (const auto& [variant, device] : table.variants) {
      // Of other devices the kernel lab times the kernels alone, without the copies.
      if (device != DeviceType::cpu) continue;
      const auto body = [&entry, variant = variant](benchmark::State& state) {
        Inputs in(entry.seed);
        const auto run = entry.make(in);
        if (run(variant) != Ran::yes) {
          state.SkipWithError("does not fit");
          return;
        }
        for (auto _ : state) run(variant);
        using benchmark::Counter;
        state.counters["GFLOP/s"] =
            Counter(entry.cost.flops * 1e-9, Counter::kIsIterationInvariantRate);
        state.counters["GB/s"] =
            Counter(entry.cost.bytes * 1e-9, Counter::kIsIterationInvariantRate);
      };
      auto* entry_bench = benchmark::RegisterBenchmark((variant + "/" + entry.name).c_str(), body);
      entry_bench->UseRealTime()->Unit(benchmark::kMicrosecond);
      if (smoke) entry_bench->Iterations(1);
      ++registered;
    }
  }
  if (registered == 0) {
    std::printf("%s: no case states its cost, so nothing is benchmarked\n", table.name.c_str());
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace

int run_op_main(const OpTable& table, int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "check";
  Selection selection;
  std::string set;
  bool smoke = false;
  for (int i = 2; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--smoke")) smoke = true;
    if (!std::strcmp(argv[i], "--small")) selection.small = true;
    if (!std::strcmp(argv[i], "--variant") && i + 1 < argc) selection.variant = argv[++i];
    if (!std::strcmp(argv[i], "--case") && i + 1 < argc) selection.only_case = argv[++i];
    if (!std::strcmp(argv[i], "--instruction-set") && i + 1 < argc) set = argv[++i];
  }
  apply_instruction_set_of_environment();
  if (!set.empty()) {
    try {
      limit_instruction_set(set);
    } catch (const Error& error) {
      // An older machine: it has tested what it can run.
      std::printf("SKIPPED: %s\n", error.what());
      return 0;
    }
  }
  if (command == "check") return check(table, selection);
  if (command == "bench") return bench(table, smoke, argc, argv);
  std::printf(
      "usage: %s check [--variant V] [--case C] [--small] [--instruction-set S] | bench "
      "[--smoke]\n",
      argv[0]);
  return 2;
}

}  // namespace weft::kernels
