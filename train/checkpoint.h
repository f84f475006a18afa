// Checkpoints: directories that are complete or absent.
//
//   OUT/step-1200/model.safetensors      the model's parameters and buffers
//                 optimizer.safetensors  the optimizer's state
//                 state.json             format version, CRC-32 of itself and of each file, and
//                                        what else to resume
//   OUT/latest                           "step-1200", and the CRC-32 of that
//
// Of a sharded one (io/sharded_safetensors.h), which Fabric::async_save() writes, each rank has
// written its part of "model.*", "optimizer.*" and "fp8.*":
//
//   OUT/step-1200/shard-0-of-4-v0.safetensors, shard-1-of-4-v0.safetensors, ...
//                 index.json             what lies where
//                 state.json
//
// A step that is saved again is step-1200.1 until the older one is gone.
//
// A checkpoint is written to a hidden directory, brought to the disk, then renamed, and `latest`
// moves after it: wherever the program stops, the last complete checkpoint is there to load. Of a
// sharded one that is when all parts are on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "io/safetensors.h"

namespace weft::train {

struct Checkpoint {
  int64_t step = 0;
  NamedTensors model;
  NamedTensors optimizer;
  /// Whatever the trainer needs: random streams, position in the data, schedule, configuration.
  nlohmann::json state;
  bool is_sharded = false;
};

/// Which older checkpoints (of lower steps) stay when one is saved: the last so many, the new one
/// counted, 0 for all, and those of `steps`.
struct KeptCheckpoints {
  KeptCheckpoints(int last, std::set<int64_t> steps = {}) : last(last), steps(std::move(steps)) {}

  int last;
  std::set<int64_t> steps;
};

/// A checkpoint that is not there yet.
class CheckpointDraft {
 public:
  /// Makes the hidden directory for it, and clears away those of drafts that came to nothing.
  CheckpointDraft(const io::Path& output, int64_t step);
  /// Removes it, unless it was committed.
  ~CheckpointDraft();
  CheckpointDraft(const CheckpointDraft&) = delete;
  CheckpointDraft& operator=(const CheckpointDraft&) = delete;

  /// Where its files are to be written, with checksums, and brought to the disk.
  const io::Path& directory() const { return directory_; }
  /// Writes state.json, which names `files`, or where none are given index.json, makes it
  /// OUT/step-N, replacing one of that number, moves `latest` to it and returns its path. Then
  /// removes the others but those that are kept.
  io::Path commit(const nlohmann::json& state, const KeptCheckpoints& kept,
                  const std::map<std::string, io::FileSummary>& files = {});

 private:
  const io::Path output_;
  const int64_t step_;
  int64_t copy_ = 0;  // of the step, see above
  io::Path directory_;
};

/// Saves output/step-N as a draft that is committed at once, in one process.
/// Throws Error naming the file that could not be written, or `output` when that is no directory;
/// what was there before stays.
io::Path save_checkpoint(const io::Path& output, const Checkpoint& checkpoint,
                         const KeptCheckpoints& kept = 0);

enum class CheckpointParts { kAll, kModel, kState };

/// Loads output/step-N, or of a directory that holds several the one `latest` names. Without
/// `latest`, which is missing only when the first save was interrupted, the highest step.
/// kModel neither reads nor checks the optimizer's tensors and leaves `optimizer` empty, kState no
/// tensors at all. Those of a full checkpoint are views of its files (see read_safetensors), of a
/// sharded one they are put together in memory: ranks read their own parts, with Fabric::load().
/// Throws Error naming the file that is missing, damaged or of another format version, and the
/// checkpoint before, if there is one.
Checkpoint load_checkpoint(const io::Path& path, CheckpointParts parts = CheckpointParts::kAll);

/// "; the checkpoint before it is OUT/step-800", where there is one of a lower step beside it.
std::string say_what_is_before(const io::Path& step);

/// Whether there is one to load in the directory of a run.
bool holds_checkpoint(const io::Path& output);
/// Whether a checkpoint's directory is called as it would be in its run's: "step-N".
bool is_step_name(const io::Path& directory);

/// The step's directory that load_checkpoint(path) would read. Throws Error when there is none.
io::Path find_checkpoint(const io::Path& path);

}  // namespace weft::train
