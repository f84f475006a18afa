// Training runs: data, model, optimizer and schedule from a Config, checkpoints on the way.
//
// A run is a function of its Config alone: the order of the data, the augmentation, the initial
// weights and dropout come from the seed, and no result depends on the number of threads. A run
// that was interrupted and resumed ends with the same bits as one that was not.
#pragma once

#include "train/runs/run_options.h"

namespace weft::train {

/// Runs a configuration to its end, or until Ctrl-C or SIGTERM: then the step at hand is finished
/// and saved, and standard error says how to resume. A second signal ends the program at once.
/// Throws Error for a bad setting or data set before anything is written.
RunResult train(const Config& config, const RunOptions& options);

/// Continues the run in options.resume with resumed_config().
RunResult resume(const RunOptions& options);

}  // namespace weft::train
