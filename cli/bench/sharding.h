// weft bench sharding: what each strategy keeps on a rank and sends from it, measured and computed.
#pragma once

#include "cli/command.h"

namespace weft::cli {

void add_bench_sharding(CLI::App& bench, Action& action);

}  // namespace weft::cli
