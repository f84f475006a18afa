#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace weft::data {

std::vector<uint8_t> read_file(const std::string& path, int64_t most) {
  // Without waiting for whoever would write into a pipe.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  WEFT_CHECK(descriptor >= 0, "{}: cannot open: {}", path, std::strerror(errno));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::fdopen(descriptor, "rb"),
                                                             std::fclose);
  WEFT_CHECK(file, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat status = {};
  WEFT_CHECK(fstat(fileno(file.get()), &status) == 0, "{}: {}", path, std::strerror(errno));
  WEFT_CHECK(S_ISREG(status.st_mode), "{}: not a regular file", path);
  WEFT_CHECK(status.st_size <= most, "{}: a file of {} bytes, at most {} are read", path,
             status.st_size, most);
  std::vector<uint8_t> bytes(status.st_size);
  const size_t done = std::fread(bytes.data(), 1, bytes.size(), file.get());
  WEFT_CHECK(!std::ferror(file.get()), "{}: cannot read: {}", path, std::strerror(errno));
  WEFT_CHECK(done == bytes.size(), "{}: ended after {} of {} bytes", path, done, bytes.size());
  return bytes;
}

std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().native().front() != '.') entries.push_back(it->path());
  }
  WEFT_CHECK(!error, "{}: cannot read the directory: {}", directory.string(), error.message());
  std::ranges::sort(entries, {}, [](const auto& path) { return path.filename().native(); });
  return entries;
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

bool is_present(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace weft::data
