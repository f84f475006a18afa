#include "kernels/testing/bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/parallel.h"
#include "core/transfer.h"
#include "kernels/autotune.h"
#include "kernels/testing/timing.h"

namespace weft::kernels {
namespace {

using nlohmann::ordered_json;

constexpr int kLeastSamples = 5;
// Before the first sample: primitives are made, memory is allocated, a GPU's clock rises.
constexpr int kWarmUps = 2;

struct Timed {
  std::string variant;
  std::vector<double> seconds;
};

/// Samples of all variants of a case, in turns.
std::vector<Timed> take_samples(const Workload& work, const std::vector<std::string>& variants,
                                const BenchOptions& options, const ColdCache& cache) {
  std::vector<Tensor> at_first;
  for (const Tensor& output : work.outputs) {
    at_first.push_back(Tensor::empty(output.shape(), output.dtype(), output.device()));
    copy_same_layout(output, at_first.back());
  }
  const auto sample = [&](const std::string& variant) {
    for (size_t i = 0; i < at_first.size(); ++i) copy_same_layout(at_first[i], work.outputs[i]);
    cache.evict(work.memory);
    return time_run(options.device, [&] { work.run(variant); });
  };
  std::vector<Timed> timed;
  for (const std::string& variant : variants) {
    timed.push_back({variant, {}});
    for (int i = 0; i < std::min(kWarmUps, options.samples - 1); ++i) sample(variant);
  }
  double total = 0;
  const double limit = options.seconds * static_cast<double>(variants.size());
  for (int round = 0; round < options.samples; ++round) {
    if (round >= kLeastSamples && total > limit) break;
    for (Timed& t : timed) {
      t.seconds.push_back(sample(t.variant));
      total += t.seconds.back();
    }
  }
  return timed;
}

/// The vendor's seconds over ours, in the same turns: above 1 we are ahead.
double ratio_of(const Timed& vendor, const Timed& ours) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.seconds.size(); ++i) {
    ratios.push_back(vendor.seconds[i] / ours.seconds[i]);
  }
  return spread_of(std::move(ratios)).median;
}

ordered_json row_of(const OpTable& table, const CaseEntry& entry, const Workload& work,
                    const Timed& timed, const Timed* vendor, const BenchOptions& options,
                    const std::optional<Roofline>& roofline) {
  const Spread seconds = spread_of(timed.seconds);
  ordered_json row = {{"op", table.name},
                      {"variant", timed.variant},
                      {"device", to_string(options.device)},
                      {"dtype", name(work.dtype)},
                      {"case", entry.name},
                      {"samples", timed.seconds.size()},
                      {"median_us", 1e6 * seconds.median},
                      {"lower_us", 1e6 * seconds.lower},
                      {"upper_us", 1e6 * seconds.upper},
                      {"least_us", 1e6 * seconds.least},
                      {"flops", entry.cost.flops},
                      {"bytes", entry.cost.bytes},
                      {"tflop_s", 1e-12 * entry.cost.flops / seconds.median},
                      {"gb_s", 1e-9 * entry.cost.bytes / seconds.median}};
  if (options.device.type == DeviceType::cpu) row["threads"] = num_threads();
  if (roofline) {
    const auto [flops, bytes] = entry.cost;
    const bool is_memory = roofline->is_memory_bound(flops, bytes, work.dtype);
    row["ceiling"] = is_memory ? "memory" : "matmul";
    row["share"] = roofline->seconds(flops, bytes, work.dtype) / seconds.median;
  }
  if (vendor) {
    row["vendor"] = vendor->variant;
    row["vendor_ratio"] = ratio_of(*vendor, timed);
  }
  return row;
}

void print_head(std::FILE* out, const OpTable& table, const BenchOptions& options) {
  fmt::print(out, "{} on {}\n", table.name, to_string(options.device));
  fmt::print(out, "{:36} {:28} {:>12} {:>7} {:>9} {:>9} {:>9} {:>8}\n", "case", "variant",
             "median us", "spread", "TFLOP/s", "GB/s", "roofline", "vendor");
}

void print_row(std::FILE* out, const ordered_json& row) {
  const double median = row["median_us"];
  const double spread = (row["upper_us"].get<double>() - row["lower_us"].get<double>()) / median;
  const auto percent = [&](const char* key) {
    return row.contains(key) ? fmt::format("{:.0f}%", 100 * row[key].get<double>()) : "-";
  };
  const std::string ratio = row.contains("vendor_ratio")
                                ? fmt::format("{:.2f}x", row["vendor_ratio"].get<double>())
                                : "-";
  fmt::print(out, "{:36} {:28} {:12.1f} {:>6.0f}% {:9.3f} {:9.1f} {:>9} {:>8}\n",
             row["case"].get<std::string>(), row["variant"].get<std::string>(), median,
             100 * spread, row["tflop_s"].get<double>(), row["gb_s"].get<double>(),
             percent("share"), ratio);
}

/// The cases that the options ask for.
std::vector<CaseEntry> selected_cases(const OpTable& table, const BenchOptions& options) {
  std::vector<CaseEntry> selected;
  std::string known;
  const bool takes_large = options.device.type == DeviceType::cuda;
  for (const CaseEntry& entry : table.cases) {
    if (!entry.is_timed()) continue;
    known += (known.empty() ? "" : ", ") + entry.name;
    if (options.shapes.empty() && entry.is_large == takes_large) selected.push_back(entry);
  }
  // Ops without cases of a GPU's size have those of a CPU.
  if (options.shapes.empty() && selected.empty())
    std::ranges::copy_if(table.cases, std::back_inserter(selected), &CaseEntry::is_timed);
  for (const std::string& shape : options.shapes) {
    const size_t before = selected.size();
    for (const CaseEntry& entry : table.cases) {
      if (entry.is_timed() && entry.name.find(shape) != std::string::npos) {
        selected.push_back(entry);
      }
    }
    if (selected.size() > before) continue;
    const auto made = table.of_shape ? table.of_shape(shape, options.dtype) : std::nullopt;
    WEFT_CHECK(made, "{}: no timed case has \"{}\" in its name{}; the cases are {}", table.name,
               shape, table.of_shape ? ", and it is no shape of this op" : "",
               known.empty() ? "none" : known);
    selected.push_back(*made);
  }
  return selected;
}

}  // namespace

bool is_vendor_variant(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kLibraries = {"_cublas", "_cudnn", "_onednn",
                                                                 "_eigen"};
  return std::ranges::any_of(
      kLibraries, [&](std::string_view library) { return name.find(library) != name.npos; });
}

BenchPlan plan_bench(const OpTable& table, const BenchOptions& options) {
  BenchPlan plan{options, selected_cases(table, options), {}};
  if (options.roofline.empty()) return plan;
  plan.roofline = read_roofline(options.roofline);
  WEFT_CHECK(plan.roofline->device == to_string(options.device),
             "{}: the roofline is that of {}, not of {}", options.roofline, plan.roofline->device,
             to_string(options.device));
  return plan;
}

void run_bench(const OpTable& table, const BenchPlan& plan, std::FILE* out) {
  const BenchOptions& options = plan.options;
  const ColdCache cache(options.device);
  int rows = 0, skipped = 0;
  if (!options.as_json) print_head(out, table, options);
  for (const CaseEntry& entry : plan.cases) {
    Inputs in(entry.seed);
    const Workload work = entry.prepare(in, options.device);
    std::vector<std::string> variants, vendors;
    for (const OpTable::Row& row : table.variants) {
      if (row.device != options.device.type) continue;
      if (!work.fits(row.name)) {
        skipped += options.variant == row.name;
        continue;
      }
      if (is_vendor_variant(row.name)) vendors.push_back(row.name);
      const bool is_vendor = is_vendor_variant(row.name) && vendors.size() == 1;
      if (options.variant.empty() || options.variant == row.name || is_vendor) {
        variants.push_back(row.name);
      }
    }
    if (!options.variant.empty() && std::ranges::count(variants, options.variant) == 0) continue;
    if (variants.empty()) {
      ++skipped;
      continue;
    }
    const std::vector<Timed> timed = take_samples(work, variants, options, cache);
    // Vendors in the list's order: the best first.
    const auto vendor =
        std::ranges::find_if(timed, [](const Timed& t) { return is_vendor_variant(t.variant); });
    for (const Timed& t : timed) {
      const ordered_json row =
          row_of(table, entry, work, t, vendor == timed.end() ? nullptr : &*vendor, options,
                 plan.roofline);
      options.as_json ? fmt::print(out, "{}\n", row.dump()) : print_row(out, row);
      ++rows;
    }
  }
  if (options.as_json) {
    fmt::print(out, "{{\"timed\":{},\"skipped\":{}}}\n", rows, skipped);
  } else {
    fmt::print(out, "{}: {} timed, {} skipped\n", table.name, rows, skipped);
  }
}

}  // namespace weft::kernels
