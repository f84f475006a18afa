// A run's figures, for programs: metrics.jsonl, one JSON object a line, and metrics.csv, one column
// a name.
//
//   MetricsLog log("runs/quick-1");
//   log.write(10, {{"loss", 1.25}, {"lr", 1e-3}});
//
//   metrics.jsonl   {"step":10,"loss":1.25,"lr":0.001}
//   metrics.csv     step,loss,lr
//                   10,1.25,0.001
//
// A directory that has both is gone on with. Numbers that JSON lacks (NaN, infinities) are null
// there. A name that comes later gets a column of its own, empty in the rows before.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"

namespace weft::train {

using NamedValues = std::vector<std::pair<std::string, double>>;

class MetricsLog {
 public:
  /// Makes the directory. Throws Error when it cannot be written, and for a metrics.csv that is not
  /// one of these.
  explicit MetricsLog(const io::Path& directory);

  /// Appends a line to each file, which are complete when it returns. Throws Error for a name with
  /// a comma, a quote or a line end, for one given twice, and whatever the disk refuses.
  void write(int64_t step, const NamedValues& values);

 private:
  void add_columns(const std::vector<std::string>& names);

  io::Path jsonl_, csv_;
  std::vector<std::string> columns_;  // behind "step"
};

}  // namespace weft::train
