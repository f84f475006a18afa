// weft bench overlap: how much of its communication a strategy hides behind computation.
#pragma once

#include "cli/command.h"

namespace weft::cli {

void add_bench_overlap(CLI::App& bench, Action& action);

}  // namespace weft::cli
