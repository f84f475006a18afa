// Training runs of language models on text: train::Trainer with a Config's settings, and what
// `weft train` says and leaves (train/image_run.h has its other half).
//
// Of a text the model sees windows as long as its context, at random places; an epoch has as many
// as the text has bytes for. Losses are nats a byte.
#pragma once

#include "train/config.h"
#include "train/image_run.h"

namespace weft::train {

/// Runs a configuration to its end, or until Ctrl-C or SIGTERM, as train() does. The result has no
/// accuracies. Throws Error for a bad setting or text before anything is written.
RunResult train_text(const Config& config, const RunOptions& options);

/// Continues the run in options.resume with resumed_config().
RunResult resume_text(const RunOptions& options);

}  // namespace weft::train
