// The page of a run of the kernel benches: `./weft kernels report`.
#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/report/html_report.h"

namespace weft::cli {

/// Rows of docs/kernel-lab.md, as a run printed them.
struct KernelRows {
  nlohmann::json roofline;  // the inner object; null when the run had none
  std::vector<nlohmann::json> rows;
};

/// Reads JSON lines; totals are left out. Throws Error naming the line that is none of the
/// schema's, or when nothing was timed.
KernelRows read_kernel_rows(std::istream& lines, const std::string& name);

report::Page kernel_page(const KernelRows& run);

}  // namespace weft::cli
