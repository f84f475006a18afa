#include "train/run_directory.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace weft::train {

bool RunDirectory::holds_run(const io::Path& path) {
  return std::filesystem::exists(path / "latest");
}

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
  directory.path_ = std::filesystem::equivalent(path, checkpoint)
                        ? std::filesystem::canonical(checkpoint).parent_path()
                        : path;
  if (writes) directory.lock_.emplace(directory.path_);
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
