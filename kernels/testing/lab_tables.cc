#include "kernels/testing/lab_tables.h"

#include <algorithm>
#include <cmath>

namespace weft::kernels {
namespace {

std::string names_of(const DTypeSet& dtypes) {
  if (std::ranges::all_of(kAllDTypes, [&](DType d) { return dtypes.contains(d); })) return "all";
  std::string names;
  for (DType dtype : kAllDTypes) {
    if (dtypes.contains(dtype)) names += (names.empty() ? "" : " ") + std::string(name(dtype));
  }
  return names;
}

/// "(gemm_is<GemmArithmetic::kIeee>)" without what a reader does not need.
std::string readable(std::string condition) {
  if (condition.starts_with("fits_any")) return "any problem";
  if (condition.starts_with('(')) condition = condition.substr(1, condition.size() - 2);
  std::string text;
  for (size_t i = 0; i < condition.size(); ++i) {
    text += condition[i];
    // An enumeration's name before its value.
    if (text.ends_with("::")) text.erase(text.find_last_of("<, ", text.size() - 3) + 1);
  }
  return text;
}

/// A table's cells, each column as wide as its widest.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("  {:<{}}", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

double largest_bound(const std::vector<Expected>& expected, DeviceType device) {
  double bound = 0;
  for (const Expected& output : expected) {
    const bool is_of_device = device != DeviceType::cpu && !output.device_bounds.empty();
    for (double b : is_of_device ? output.device_bounds : output.bounds) {
      if (std::isfinite(b)) bound = std::max(bound, b);
    }
  }
  return bound;
}

}  // namespace

void print_variants(const OpTable& table) {
  const bool has_cuda = runtime::device_count() > 0;
  std::vector<int> fitting(table.variants.size(), 0);
  int cases = 0;
  for (const CaseEntry& entry : table.cases) {
    if (entry.is_large || entry.is_timed()) continue;
    ++cases;
    for (DeviceType type : {DeviceType::cpu, DeviceType::cuda}) {
      const bool is_here = std::ranges::count(table.variants, type, &OpTable::Row::device) > 0;
      if (!is_here || (type == DeviceType::cuda && !has_cuda)) continue;
      Inputs in(entry.seed);
      const Workload work = entry.prepare(in, Device{type, 0});
      for (size_t v = 0; v < fitting.size(); ++v) {
        if (table.variants[v].device == type) fitting[v] += work.fits(table.variants[v].name);
      }
    }
  }
  std::vector<std::vector<std::string>> rows = {
      {table.name, "device", "dtypes", "takes", fmt::format("of {} cases", cases)}};
  for (size_t v = 0; v < fitting.size(); ++v) {
    const OpTable::Row& row = table.variants[v];
    const bool is_known = row.device == DeviceType::cpu || has_cuda;
    rows.push_back({row.name, std::string(name(row.device)), names_of(row.dtypes),
                    readable(row.condition), is_known ? std::to_string(fitting[v]) : "-"});
  }
  print_table(rows);
}

CheckReport::CheckReport(const OpTable& table, bool as_json, bool every_case)
    : table_(table), as_json_(as_json), every_case_(every_case) {
  if (as_json || !every_case) return;
  fmt::print("{:<28} {:<7} {:>10} {:>10} {:>8}  case\n", table.name, "dtype", "max error", "bound",
             "of bound");
}

const std::string& CheckReport::dtype_of(const CaseEntry& entry) {
  if (entry_ != &entry) {
    Inputs in(entry.seed);
    const auto run = entry.make(in);
    dtype_ = in.outputs().empty() ? "" : name(in.outputs().front().dtype());
    entry_ = &entry;
  }
  return dtype_;
}

void CheckReport::add(const CaseEntry& entry, const OpTable::Row& variant,
                      const CheckResult& result, const std::vector<Expected>& expected) {
  const bool passed = result.failure.empty();
  ++checked_;
  failed_ += !passed;
  const std::string& dtype = dtype_of(entry);
  const double bound = largest_bound(expected, variant.device);
  if (as_json_) return print_json(entry, variant.name, dtype, result, bound);
  if (!passed) {
    fmt::print("FAILED {} {} {} (seed {:016x}): {}\n", table_.name, variant.name, entry.name,
               entry.seed, result.failure);
  } else if (every_case_) {
    fmt::print("{:<28} {:<7} {:>10.2g} {:>10.2g} {:>8.2f}  {}\n", variant.name, dtype,
               result.max_error, bound, result.bound_used, entry.name);
  }
  const std::pair key(variant.name, dtype);
  auto group = std::ranges::find(groups_, key, &decltype(groups_)::value_type::first);
  if (group == groups_.end()) group = groups_.insert(groups_.end(), {key, {}});
  Group& g = group->second;
  ++g.cases;
  g.failed += !passed;
  if (g.worst.empty() || result.bound_used > g.share) {
    g.share = result.bound_used;
    g.worst = entry.name;
  }
}

void CheckReport::print_json(const CaseEntry& entry, const std::string& variant,
                             const std::string& dtype, const CheckResult& result,
                             double bound) const {
  std::string failure;
  for (char c : result.failure) {
    if (c == '"' || c == '\\') failure += '\\';
    failure += c == '\n' ? ' ' : c;
  }
  const bool passed = failure.empty();
  fmt::print(
      "{{\"op\":\"{}\",\"variant\":\"{}\",\"dtype\":\"{}\",\"case\":\"{}\",\"passed\":{},"
      "\"max_error\":{:.9g},\"bound\":{:.9g}{}}}\n",
      table_.name, variant, dtype, entry.name, passed, result.max_error, bound,
      passed ? "" : fmt::format(",\"failure\":\"{}\"", failure));
}

void CheckReport::fault(const std::string& message) {
  ++failed_;
  if (!as_json_) fmt::print("FAILED {} {}\n", table_.name, message);
}

void CheckReport::print_groups() const {
  // The list's order, not that of the cases.
  std::vector<std::vector<std::string>> rows = {
      {table_.name, "dtype", "cases", "failed", "of bound", "worst case"}};
  for (const OpTable::Row& variant : table_.variants) {
    for (const auto& [key, group] : groups_) {
      if (key.first != variant.name) continue;
      rows.push_back({key.first, key.second, std::to_string(group.cases),
                      std::to_string(group.failed), fmt::format("{:.2f}", group.share),
                      group.share > 0 ? group.worst : "all exact"});
    }
  }
  if (rows.size() > 1) print_table(rows);
}

void CheckReport::add_traffic(const std::vector<AccessTraffic>& traffic) const {
  constexpr size_t kShown = 20;
  if (as_json_) {
    for (const AccessTraffic& t : traffic) {
      fmt::print(
          "{{\"op\":\"{}\",\"place\":\"{}\",\"memory\":\"{}\",\"access\":\"{}\",\"executions\":{},"
          "\"transactions\":{},\"ideal\":{}}}\n",
          table_.name, t.place, t.is_shared ? "shared" : "global", t.kind, t.executions,
          t.transactions, t.ideal);
    }
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"memory", "access", "executions", "transactions", "over ideal", "place"}};
  for (const AccessTraffic& t : traffic) {
    if (rows.size() > kShown) break;
    rows.push_back(
        {t.is_shared ? "shared" : "global", t.kind, std::to_string(t.executions),
         std::to_string(t.transactions),
         fmt::format("{:.2f}", static_cast<double>(t.transactions) / static_cast<double>(t.ideal)),
         t.place});
  }
  print_table(rows);
  if (traffic.size() > kShown) {
    fmt::print("  and {} accesses of fewer transactions (--json has all)\n",
               traffic.size() - kShown);
  }
}

bool CheckReport::finish() {
  if (as_json_) {
    fmt::print("{{\"checked\":{},\"failed\":{},\"skipped\":{}}}\n", checked_, failed_, skipped_);
  } else {
    if (!every_case_) print_groups();
    fmt::print("{}: {} checked, {} failed, {} skipped\n", table_.name, checked_, failed_, skipped_);
  }
  return failed_ == 0 && checked_ > 0;
}

}  // namespace weft::kernels
