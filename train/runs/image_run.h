// Training runs on sets of images: train::Trainer with a Config's settings, and what `weft train`
// says and leaves (text_run.h is its twin).
//
// A global batch is the images that all ranks take together. It is split into micro-batches: one
// per data rank (several where a strategy works on several), or with a deterministic reduction M,
// whatever the number of ranks. Data rank r of N takes M / N of them, those of numbers r, r + N,
// ... Ranks that share a layer or a pipeline are one data rank.
//
// Dropout in a micro-batch is drawn from a stream of the micro-batch's own, not the rank's. Losses
// are weighted with the micro-batches' share of the samples. Sums that are reported are exact
// (dist/comm/exact_sum.h). So with a deterministic reduction a run has the same bits on 1, 2, 4,
// ..., M ranks; without one it has the same mathematics on any number of ranks.
#pragma once

#include "io/files.h"
#include "train/config.h"
#include "train/runs/run_options.h"

namespace weft::train {

/// What run.h's train() and resume() do for images; `step`: the checkpoint to go on from.
RunResult train_images(const Config& config, const RunOptions& options);
RunResult resume_images(const Config& config, const RunOptions& options, const io::Path& step);

}  // namespace weft::train
