#include "train/run_directory.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "train/checkpoint.h"

namespace weft::train {

namespace {

/// What a run that was killed was about to write, whole and under another name
/// (io::write_file_atomically).
void remove_unfinished(const io::Path& directory) {
  std::vector<io::Path> unfinished;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    for (const char* file :
         {"config.yaml", "metrics.csv", "metrics.jsonl", "model.safetensors", "validation.json"}) {
      if (name.starts_with(fmt::format(".{}.", file)) && name.ends_with(".tmp")) {
        unfinished.push_back(entry.path());
      }
    }
  }
  for (const io::Path& path : unfinished) io::remove_tree(path);
}

}  // namespace

bool RunDirectory::holds_run(const io::Path& path) { return holds_checkpoint(path); }

void RunDirectory::check_holds_none(const io::Path& path) {
  WEFT_CHECK(!holds_run(path),
             "{0} already holds a run; continue it with --resume {0} or choose another --output",
             path.string());
}

RunDirectory RunDirectory::claim(const std::string& asked, const std::string& name) {
  RunDirectory directory;
  if (!asked.empty()) {
    io::make_directories(asked);
    directory.path_ = asked;
    directory.lock_.emplace(asked);
    check_holds_none(asked);
    remove_unfinished(asked);
    return directory;
  }
  io::make_directories("runs");
  for (int n = 1;; ++n) {
    const io::Path path = io::Path("runs") / fmt::format("{}-{}", name, n);
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) {
      directory.path_ = path;
      directory.lock_.emplace(path);
      return directory;
    }
    WEFT_CHECK(!error, "cannot create the directory {}: {}", path.string(), error.message());
  }
}

RunDirectory RunDirectory::of(const io::Path& path, const io::Path& checkpoint, bool writes) {
  RunDirectory directory;
  directory.path_ = path;
  if (std::filesystem::equivalent(path, checkpoint)) {
    const io::Path step = std::filesystem::canonical(checkpoint);
    directory.path_ = step.parent_path();
    // What is there must not be overwritten by a run that it is not of.
    const bool is_of_run =
        is_step_name(step) && (std::filesystem::exists(directory.path_ / "latest") ||
                               std::filesystem::exists(directory.path_ / "metrics.jsonl"));
    WEFT_CHECK(is_of_run || !writes,
               "{0} is a checkpoint outside of its run's directory; expected step-N in a directory "
               "that a run writes to: move it to NEW/step-N, and go on with --resume NEW",
               step.string());
  }
  if (!writes) return directory;
  directory.lock_.emplace(directory.path_);
  remove_unfinished(directory.path_);
  return directory;
}

void RunDirectory::check_writable(int64_t checkpoint_bytes) const {
  io::FileWriter(path_ / ".writable");  // its destructor removes it
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path_, error);
  if (error || space.capacity == 0) return;  // some file systems do not say
  WEFT_CHECK(space.available >= static_cast<uintmax_t>(checkpoint_bytes),
             "cannot save checkpoints in {}: {}: one takes {} bytes, {} are free", path_.string(),
             std::strerror(ENOSPC), checkpoint_bytes, space.available);
}

}  // namespace weft::train
