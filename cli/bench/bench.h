// The benches of `weft bench` beside `step`, a file each.
#pragma once

#include "cli/command.h"

namespace weft::cli {

/// How much of its communication a strategy hides behind computation.
void add_bench_overlap(Command& bench, Action& action);
/// The planner's predictions against runs on this machine.
void add_bench_plan(Command& bench, Action& action);
/// How a training step's time and memory grow with its sizes.
void add_bench_scaling(Command& bench, Action& action);
/// What each strategy keeps on a rank and sends from it, measured and computed.
void add_bench_sharding(Command& bench, Action& action);

}  // namespace weft::cli
