// The page of one training run or of several beside each other: `weft report`, and the end of
// `weft train`.
//
//   write_run_page({read_run("runs/quick-1"), read_run("runs/quick-2")}, "report.html");
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/report/html_report.h"
#include "io/files.h"
#include "train/config.h"
#include "train/findings.h"
#include "train/metrics/metrics_file.h"

namespace weft::report {

/// What a run's directory says. Of what is missing there, the page tells why.
struct RunRecord {
  std::string name;  // of the directory
  std::string path;  // as it was given
  std::optional<train::Config> config;
  std::vector<train::MetricsRow> metrics;
  std::optional<train::Findings> findings;
  std::string no_config, no_metrics, no_findings;  // the reasons
};

/// Reads config.yaml, metrics.jsonl (up to its last whole line) and validation.json. Throws Error
/// naming `directory` when it holds no run, or naming the file, and of metrics the line, that is
/// damaged. Where the findings of the last checkpoint are missing and `evaluates`, it is evaluated,
/// which takes as long as a validation of the run; the directory stays as it is.
RunRecord read_run(const io::Path& directory, bool evaluates);

/// Runs whose directories have one name go by their paths.
Page run_page(std::vector<RunRecord> runs);

}  // namespace weft::report
