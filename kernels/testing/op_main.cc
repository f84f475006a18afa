#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/instruction_set.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {
namespace {

/// The emulator needs some 100 ns for what a GPU does in no time.
bool takes_long_to_emulate(const Cost& cost) { return cost.bytes > 1 << 20 || cost.flops > 4e6; }

struct CheckOptions {
  std::string variant, only_case;  // empty: all
  bool small = false;              // no cases that are benchmarked too
  bool as_json = false;

  bool takes(const CaseEntry& entry) const {
    const bool is_small = entry.cost.flops == 0 && entry.cost.bytes == 0;
    return (only_case.empty() || entry.name == only_case) && (!small || is_small);
  }
  bool is_everything() const { return variant.empty() && only_case.empty() && !small; }
};

/// One row of the lab's table.
void print_result(const OpTable& table, const CaseEntry& entry, const std::string& variant,
                  const CheckResult& result, const std::vector<Expected>& expected, bool as_json) {
  const bool passed = result.failure.empty();
  if (!as_json) {
    if (passed) return;
    std::printf("FAILED %s %s %s (seed %016lx): %s\n", table.name.c_str(), variant.c_str(),
                entry.name.c_str(), entry.seed, result.failure.c_str());
    return;
  }
  double bound = 0;
  for (const Expected& output : expected) {
    for (double b : output.bounds) {
      if (std::isfinite(b)) bound = std::max(bound, b);
    }
  }
  Inputs in(entry.seed);
  const auto run = entry.make(in);
  const std::string dtype =
      in.outputs().empty() ? "" : std::string(name(in.outputs().front().dtype()));
  std::string failure;
  for (char c : result.failure) {
    if (c == '"' || c == '\\') failure += '\\';
    failure += c == '\n' ? ' ' : c;
  }
  fmt::print(
      "{{\"op\":\"{}\",\"variant\":\"{}\",\"dtype\":\"{}\",\"case\":\"{}\",\"passed\":{},"
      "\"max_error\":{:.9g},\"bound\":{:.9g}{}}}\n",
      table.name, variant, dtype, entry.name, passed, result.max_error, bound,
      passed ? "" : fmt::format(",\"failure\":\"{}\"", failure));
}

int check(const OpTable& table, const CheckOptions& options) {
  const std::string& only_variant = options.variant;
  int checked = 0, failed = 0, skipped = 0;
  const bool emulated = runtime::is_emulated();
  const auto fault = [&](const std::string& message) {
    ++failed;
    if (!options.as_json) std::printf("FAILED %s %s\n", table.name.c_str(), message.c_str());
  };
  std::vector<bool> variant_ran(table.variants.size(), false), no_device = variant_ran;
  for (const CaseEntry& entry : table.cases) {
    if (!options.takes(entry)) continue;
    if (emulated && options.only_case.empty() && takes_long_to_emulate(entry.cost)) {
      ++skipped;
      continue;
    }
    const std::vector<Expected> expected = entry.expected();
    bool any_ran = false;
    for (size_t v = 0; v < table.variants.size(); ++v) {
      const std::string& variant = table.variants[v].name;
      if (!only_variant.empty() && variant != only_variant) continue;
      if (emulated && only_variant.empty() && table.variants[v].device == DeviceType::cpu) {
        variant_ran[v] = any_ran = true;
        continue;
      }
      const CheckResult result = check_case(table, entry, variant, expected);
      if (result.ran == Ran::no_device) {
        no_device[v] = true;
        ++skipped;
      }
      if (result.ran != Ran::yes && result.failure.empty()) continue;
      any_ran = true;
      variant_ran[v] = true;
      ++checked;
      failed += !result.failure.empty();
      print_result(table, entry, variant, result, expected, options.as_json);
    }
    if (!any_ran && only_variant.empty()) fault(entry.name + ": no variant fits");
  }
  for (size_t v = 0; v < table.variants.size(); ++v) {
    const std::string& variant = table.variants[v].name;
    if (no_device[v] && !options.as_json) {
      std::printf("SKIPPED: %s needs a CUDA device\n", variant.c_str());
    }
    if (variant_ran[v] || no_device[v] || !options.is_everything()) continue;
    fault(variant + ": no case fits this variant");
  }
  if (options.as_json) {
    std::printf("{\"checked\":%d,\"failed\":%d,\"skipped\":%d}\n", checked, failed, skipped);
  } else {
    std::printf("%s: %d checked, %d failed, %d skipped\n", table.name.c_str(), checked, failed,
                skipped);
  }
  return failed == 0 && checked > 0 ? 0 : 1;
}

int list(const OpTable& table) {
  for (const OpTable::Row& row : table.variants) {
    std::printf("%-20s %-36s %s\n", table.name.c_str(), row.name.c_str(),
                std::string(name(row.device)).c_str());
  }
  return 0;
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
  CheckOptions options;
  std::string set;
  bool smoke = false;
  for (int i = 2; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--smoke")) smoke = true;
    if (!std::strcmp(argv[i], "--small")) options.small = true;
    if (!std::strcmp(argv[i], "--json")) options.as_json = true;
    if (!std::strcmp(argv[i], "--variant") && i + 1 < argc) options.variant = argv[++i];
    if (!std::strcmp(argv[i], "--case") && i + 1 < argc) options.only_case = argv[++i];
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
  if (!options.variant.empty() && std::ranges::find(table.variants, options.variant,
                                                    &OpTable::Row::name) == table.variants.end()) {
    std::string known;
    for (const OpTable::Row& row : table.variants) {
      known += (known.empty() ? "" : ", ") + row.name;
    }
    std::fprintf(stderr, "weft: error: %s has no variant \"%s\": expected one of %s\n",
                 table.name.c_str(), options.variant.c_str(), known.c_str());
    return 2;
  }
  if (command == "check") return check(table, options);
  if (command == "list") return list(table);
  if (command == "bench") return bench(table, smoke, argc, argv);
  std::fprintf(stderr,
               "usage: %s list | check [--variant V] [--case C] [--small] [--instruction-set S] "
               "[--json] | bench [--smoke]\n",
               argv[0]);
  return 2;
}

}  // namespace weft::kernels
