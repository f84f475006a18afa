// What a MetricsLog wrote (train/metrics/metrics_log.h), read again: by who draws curves, and by a
// run that goes on.
//
//   for (const MetricsRow& row : read_metrics("runs/quick-1/metrics.jsonl")) {
//     if (const auto loss = row.find("loss/step")) ...
//   }
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/files.h"

namespace weft::train {

struct MetricsRow {
  int64_t step = 0;
  std::map<std::string, double> values;  // NaN for null

  std::optional<double> find(const std::string& name) const {
    const auto at = values.find(name);
    return at == values.end() ? std::nullopt : std::optional(at->second);
  }
};

/// The rows of a metrics.jsonl. What follows its last line end is left out: a row that is being
/// written, or what a killed program left of one. Throws Error naming the file and the line of any
/// other that is not an object of numbers with a "step".
std::vector<MetricsRow> read_metrics(const io::Path& jsonl);

/// Takes from a directory's metrics.jsonl and metrics.csv what a run that goes on after `step`
/// steps and `epochs` epochs writes again: rows of later steps, rows whose "epoch" is later, and
/// what is left of a last row. Files that are missing stay so. Throws Error naming the file and the
/// line that cannot be read.
void cut_metrics(const io::Path& directory, int64_t step, int64_t epochs);

}  // namespace weft::train
