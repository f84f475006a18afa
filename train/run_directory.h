// The directory that a run keeps its checkpoints and curves in, found and tried out before the
// first step.
#pragma once

#include <cstdint>
#include <string>

#include "io/files.h"

namespace weft::train {

/// Creates and returns `asked`, or where that is empty runs/NAME-N with the first N that is free;
/// no other run gets the same. Throws Error when `asked` already holds a run.
io::Path claim_run_directory(const std::string& asked, const std::string& name);

/// The run's directory that a checkpoint found under `path` belongs to.
io::Path run_directory_of(const io::Path& path, const io::Path& checkpoint);

/// Throws Error unless a checkpoint of so many bytes can be written: a full or read-only disk is
/// better found before the first epoch than after it.
void check_writable(const io::Path& directory, int64_t checkpoint_bytes);

}  // namespace weft::train
