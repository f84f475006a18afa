#include "train/run_directory.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace weft::train {

io::Path claim_run_directory(const std::string& asked, const std::string& name) {
  if (!asked.empty()) {
    WEFT_CHECK(!std::filesystem::exists(io::Path(asked) / "latest"),
               "{} already holds a run; continue it with --resume {} or choose another --output",
               asked, asked);
    io::make_directories(asked);
    return asked;
  }
  io::make_directories("runs");
  for (int n = 1;; ++n) {
    const io::Path path = io::Path("runs") / fmt::format("{}-{}", name, n);
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) return path;
    WEFT_CHECK(!error, "cannot create the directory {}: {}", path.string(), error.message());
  }
}

io::Path run_directory_of(const io::Path& path, const io::Path& checkpoint) {
  return std::filesystem::equivalent(path, checkpoint)
             ? std::filesystem::canonical(checkpoint).parent_path()
             : path;
}

void check_writable(const io::Path& directory, int64_t checkpoint_bytes) {
  io::FileWriter(directory / ".writable");  // its destructor removes it
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (error || space.capacity == 0) return;  // some file systems do not say
  WEFT_CHECK(space.available >= static_cast<uintmax_t>(checkpoint_bytes),
             "cannot save checkpoints in {}: {}: one takes {} bytes, {} are free",
             directory.string(), std::strerror(ENOSPC), checkpoint_bytes, space.available);
}

}  // namespace weft::train
