// Checkpoints: directories that are complete or absent.
//
//   OUT/step-1200/model.safetensors      the model's parameters and buffers
//                 optimizer.safetensors  the optimizer's state
//                 state.json             format version, CRC-32 of itself and of each file, and
//                                        what else to resume
//   OUT/latest                           "step-1200", and the CRC-32 of that
//
// A step that is saved again is step-1200.1 until the older one is gone.
//
// A checkpoint is written to a hidden directory, brought to the disk, then renamed, and `latest`
// moves after it: wherever the program stops, the last complete checkpoint is there to load.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"

namespace weft::train {

struct Checkpoint {
  int64_t step = 0;
  NamedTensors model;
  NamedTensors optimizer;
  /// Whatever the trainer needs: random streams, position in the data, schedule, configuration.
  nlohmann::json state;
};

/// Saves output/step-N, replacing one of that number, and returns its path. Afterwards removes
/// older checkpoints (of lower steps) but the last `keep_last`, this one counted; 0 keeps all.
/// Throws Error naming the file that could not be written, or `output` when that is no directory;
/// what was there before stays.
io::Path save_checkpoint(const io::Path& output, const Checkpoint& checkpoint, int keep_last = 0);

enum class CheckpointParts { kAll, kModel };

/// Loads output/step-N, or of a directory that holds several the one `latest` names. Without
/// `latest`, which is missing only when the first save was interrupted, the highest step.
/// kModel neither reads nor checks the optimizer's file and leaves `optimizer` empty.
/// The tensors are views of the files (see read_safetensors).
/// Throws Error naming the file that is missing, damaged or of another format version.
Checkpoint load_checkpoint(const io::Path& path, CheckpointParts parts = CheckpointParts::kAll);

/// The step's directory that load_checkpoint(path) would read. Throws Error when there is none.
io::Path find_checkpoint(const io::Path& path);

}  // namespace weft::train
