// The directory that a run keeps its checkpoints and curves in, found and tried out before the
// first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/files.h"

namespace weft::train {

/// A run's directory, which no other run writes to while this lives.
class RunDirectory {
 public:
  /// `asked`, or where that is empty runs/NAME-N with the first N that is free; made where it is
  /// missing. Throws Error when `asked` already holds a run, or is another's at the moment.
  static RunDirectory claim(const std::string& asked, const std::string& name);
  /// Whether there is a checkpoint of a run to go on from.
  static bool holds_run(const io::Path& path);
  /// Throws Error when it does.
  static void check_holds_none(const io::Path& path);
  /// That of the run which a checkpoint found under `path` belongs to. With `writes`, throws Error
  /// when it is another's at the moment.
  static RunDirectory of(const io::Path& path, const io::Path& checkpoint, bool writes);

  const io::Path& path() const { return path_; }
  /// Throws Error unless a checkpoint of so many bytes can be written: a full or read-only disk is
  /// better found before the first epoch than after it.
  void check_writable(int64_t checkpoint_bytes) const;

 private:
  io::Path path_;
  std::optional<io::DirectoryLock> lock_;
};

}  // namespace weft::train
