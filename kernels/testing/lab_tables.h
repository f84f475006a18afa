// What `list` and `check` say of an op.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/emulation.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// A line for each variant, in the order of the list: device, dtypes, the condition on the problem,
/// and how many of the cases that are not timed it fits ("-" where its device is missing).
void print_variants(const OpTable& table);

/// The results of a check as they come: as JSON a row each, else a table of the variants by dtype,
/// or, with `every_case`, of the cases.
class CheckReport {
 public:
  CheckReport(const OpTable& table, bool as_json, bool every_case);

  void add(const CaseEntry& entry, const OpTable::Row& variant, const CheckResult& result,
           const std::vector<Expected>& expected);
  /// A failure of the list or of the cases, not of a result.
  void fault(const std::string& message);
  void skip() { ++skipped_; }
  /// How memory was used, dearest access first; the table has the first ones.
  void add_traffic(const std::vector<AccessTraffic>& traffic) const;
  /// The table and the totals; whether all is well and something was checked.
  bool finish();

 private:
  struct Group {  // a variant's results in a dtype
    int cases = 0, failed = 0;
    double share = 0;        // of its bound that the worst case's error takes
    std::string worst = {};  // that case
  };

  /// Of the case's first output.
  const std::string& dtype_of(const CaseEntry& entry);
  void print_json(const CaseEntry& entry, const std::string& variant, const std::string& dtype,
                  const CheckResult& result, double bound) const;
  void print_groups() const;

  const OpTable& table_;
  const bool as_json_, every_case_;
  const CaseEntry* entry_ = nullptr;  // the last one, and its dtype: variants of a case follow
  std::string dtype_;
  int checked_ = 0, failed_ = 0, skipped_ = 0;
  std::vector<std::pair<std::pair<std::string, std::string>, Group>> groups_;
};

}  // namespace weft::kernels
