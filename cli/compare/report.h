// What `weft compare` found, as a table, as JSON and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/compare/cases.h"
#include "cli/report/html_report.h"
#include "io/progress.h"

namespace weft::cli {

/// Median and extremes of one figure per turn.
struct Spread {
  double median = 0, least = 0, most = 0;

  static Spread of(std::vector<double> values);
  double relative() const { return median > 0 ? (most - least) / median : 0; }
};

/// One program's half of a case, or why there is none.
struct SideResult {
  std::vector<double> values;  // of each turn: seconds or bytes
  double best = 0;             // the least of all samples: what hardly any interruption touched
  std::string failure;
  nlohmann::ordered_json profile;  // rows {name, calls, ms}, or null
};

struct PeerResult : SideResult {
  std::string side;            // "eager", ...
  std::vector<double> ratios;  // to Weft's of the same pair
};

/// Weft's half, and the peer's in each of its forms.
struct CaseResult : SideResult {
  CompareCase about;
  std::vector<PeerResult> peers;

  bool is_memory() const { return about.measure == CompareCase::Measure::kMemory; }
  /// Some peer was faster, or smaller.
  bool is_lost() const { return worst_ratio() < 1; }
  /// The smallest median of ratios; infinity without peers.
  double worst_ratio() const;
};

/// A run: what was measured, with what, where.
struct CompareReport {
  nlohmann::ordered_json about;  // versions, device, threads, commands, machine
  std::vector<CaseResult> cases;
};

/// One row per case and peer, each printed when it is known.
io::Table compare_table();
void print_rows(io::Table& table, const CaseResult& result);

nlohmann::ordered_json to_json(const CompareReport& report);
report::Page to_page(const CompareReport& report);

}  // namespace weft::cli
