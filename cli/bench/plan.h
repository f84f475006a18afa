// weft bench plan: the planner's predictions against runs on this machine.
#pragma once

#include "cli/command.h"

namespace weft::cli {

void add_bench_plan(CLI::App& bench, Action& action);

}  // namespace weft::cli
