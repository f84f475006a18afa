// What `weft compare` found, as a table, as JSON and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/compare/cases.h"
#include "io/progress.h"

namespace weft::cli {

/// Median and extremes of one figure per turn.
struct Spread {
  double median = 0, least = 0, most = 0;

  static Spread of(std::vector<double> values);
  /// (most - least) / median
  double relative() const { return median > 0 ? (most - least) / median : 0; }
};

/// The peer's half of a case, or why there is none.
struct PeerResult {
  std::string side;            // "eager", ...
  std::vector<double> values;  // of each turn: seconds or bytes
  double best = 0;             // the least of all samples: what hardly any interruption touched
  std::vector<double> ratios;  // to Weft's of the same pair
  std::string failure;
  nlohmann::ordered_json profile;  // rows {name, calls, ms}, or null
};

struct CaseResult {
  CompareCase about;
  std::vector<double> values;  // Weft's, of each turn
  double best = 0;
  std::string failure;  // Weft's
  nlohmann::ordered_json profile;
  std::vector<PeerResult> peers;

  bool is_memory() const { return about.measure == CompareCase::Measure::kMemory; }
  /// Some peer was faster, or smaller.
  bool is_lost() const;
  /// The smallest median of ratios; infinity without peers.
  double worst_ratio() const;
};

/// A run: what was measured, with what, where.
struct CompareReport {
  nlohmann::ordered_json about;  // versions, device, threads, commands, machine
  std::vector<CaseResult> cases;
};

/// "1.23 ms", "45.6 MB"
std::string format_figure(double value, bool is_memory);

/// One row per case and peer, each printed when it is known.
class CompareTable {
 public:
  CompareTable();
  void row(const CaseResult& result);

 private:
  io::Table table_;
};

nlohmann::ordered_json to_json(const CompareReport& report);
/// A page without references to anything outside it.
std::string to_html(const CompareReport& report);

}  // namespace weft::cli
