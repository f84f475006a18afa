// Training runs of language models on text: train::Trainer with a Config's settings, and what
// `weft train` says and leaves (image_run.h is its twin).
//
// Of a text the model sees windows as long as its context, at random places; an epoch has as many
// as the text has bytes for. Losses are nats a byte.
#pragma once

#include "io/files.h"
#include "train/config.h"
#include "train/runs/run_options.h"

namespace weft::train {

/// What run.h's train() and resume() do for text; `step`: the checkpoint to go on from. The result
/// has no accuracies.
RunResult train_text(const Config& config, const RunOptions& options);
RunResult resume_text(const Config& config, const RunOptions& options, const io::Path& step);

}  // namespace weft::train
