#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/device/probe.h"
#include "kernels/instruction_set.h"
#include "kernels/testing/bench.h"
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
    if (!only_case.empty()) return entry.name == only_case;
    return !entry.is_large && (!small || !entry.is_timed());
  }
  bool is_everything() const { return variant.empty() && only_case.empty() && !small; }
};

/// One row of the lab's table.
void print_result(const OpTable& table, const CaseEntry& entry, const std::string& variant,
                  const CheckResult& result, const std::vector<Expected>& expected,
                  DeviceType device, bool as_json) {
  const bool passed = result.failure.empty();
  if (!as_json) {
    if (passed) return;
    std::printf("FAILED %s %s %s (seed %016lx): %s\n", table.name.c_str(), variant.c_str(),
                entry.name.c_str(), entry.seed, result.failure.c_str());
    return;
  }
  double bound = 0;
  for (const Expected& output : expected) {
    const bool is_of_device = device != DeviceType::cpu && !output.device_bounds.empty();
    for (double b : is_of_device ? output.device_bounds : output.bounds) {
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
      if (emulated && options.only_case.empty() &&
          variant.find(entry.emulated_on) == std::string::npos) {
        any_ran = true;
        ++skipped;
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
      print_result(table, entry, variant, result, expected, table.variants[v].device,
                   options.as_json);
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

int usage_error(const std::string& message) {
  std::fprintf(stderr, "weft: error: %s\n", message.c_str());
  return 2;
}

struct Arguments {
  CheckOptions check;
  BenchOptions bench;
  std::string instruction_set, device, dtype;
};

/// What to time; throws Error for arguments that make no sense.
BenchPlan bench_plan(const OpTable& table, const Arguments& a) {
  WEFT_CHECK(!runtime::is_emulated(),
             "bench: the emulated device has no speed to measure; time kernels in the cpu or the "
             "cuda flavour");
  BenchOptions options = a.bench;
  if (!a.dtype.empty()) options.dtype = parse_dtype(a.dtype);
  WEFT_CHECK(is_floating(options.dtype), "bench: --dtype {}: expected a floating dtype", a.dtype);
  if (!a.device.empty()) {
    options.device = parse_device(a.device);
    require_usable(options.device);
  } else if (runtime::device_count() > 0) {
    options.device = {DeviceType::cuda, 0};
  }
  return plan_bench(table, options);
}

}  // namespace

int run_op_main(const OpTable& table, int argc, char** argv) {
  Arguments a;
  CLI::App app("Lists, checks or times the variants of " + table.name + ".", table.name);
  app.require_subcommand(0, 1);
  const CLI::App* const list_command = app.add_subcommand("list", "the variants");
  CLI::App* const check_command =
      app.add_subcommand("check", "every variant on every case, beside the reference");
  check_command->add_option("--variant", a.check.variant, "this one alone");
  check_command->add_option("--case", a.check.only_case, "this one alone");
  check_command->add_flag("--small", a.check.small, "without the cases that are timed, too");
  check_command->add_flag("--json", a.check.as_json, "a JSON object a line");
  check_command->add_option("--instruction-set", a.instruction_set,
                            "the best that CPU kernels may use");
  CLI::App* const bench_command =
      app.add_subcommand("bench", "times the variants on the timed cases, from a cold cache");
  bench_command->add_option("--variant", a.bench.variant, "this one, and the vendor's");
  bench_command->add_option("--shape", a.bench.shapes,
                            "cases with this in their names, or a shape such as 512x512x64");
  bench_command->add_option("--dtype", a.dtype, "of shapes that are no case; default f32");
  bench_command->add_option("--device", a.device,
                            "cpu, cuda or cuda:N; default: a GPU where there is one");
  bench_command->add_option("--samples", a.bench.samples, "of each variant on each case")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  bench_command->add_option("--seconds", a.bench.seconds, "at most, for a variant on a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench_command->add_option("--roofline", a.bench.roofline,
                            "what the roofline program wrote: adds the share of it");
  bench_command->add_flag("--json", a.bench.as_json, "a JSON object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return usage_error(fmt::format("{}: {}", table.name, error.what()));
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
  if (list_command->parsed()) return list(table);
  if (!bench_command->parsed()) return check(table, a.check);
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
