// A plan drawn: scaling, efficiency and memory of the strategies over the number of devices.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/prediction.h"

namespace weft::cli {

/// Throws Error when the page cannot be written.
void write_plan_report(const std::string& path, const Demand& demand,
                       const std::vector<Prediction>& best_first);

}  // namespace weft::cli
