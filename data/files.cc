#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace weft::data {
namespace {

class File {
 public:
  explicit File(const std::string& path) : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    WEFT_CHECK(descriptor >= 0, "{}: cannot open: {}", path, std::strerror(errno));
  }
  ~File() { close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const int descriptor;
};

struct stat status_of(const File& file, const std::string& path) {
  struct stat status = {};
  WEFT_CHECK(fstat(file.descriptor, &status) == 0, "{}: {}", path, std::strerror(errno));
  WEFT_CHECK(S_ISREG(status.st_mode), "{}: not a regular file", path);
  return status;
}

std::vector<uint8_t> read_all(const File& file, const std::string& path, int64_t size) {
  std::vector<uint8_t> bytes(size);
  int64_t done = 0;
  while (done < size) {
    const ssize_t count = read(file.descriptor, bytes.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    WEFT_CHECK(count >= 0, "{}: cannot read: {}", path, std::strerror(errno));
    WEFT_CHECK(count > 0, "{}: ended after {} of {} bytes", path, done, size);
    done += count;
  }
  return bytes;
}

}  // namespace

std::vector<uint8_t> read_file(const std::string& path) {
  const File file(path);
  return read_all(file, path, status_of(file, path).st_size);
}

std::vector<uint8_t> read_file_of_size(const std::string& path, int64_t bytes,
                                       const std::string& what) {
  const File file(path);
  const int64_t found = status_of(file, path).st_size;
  WEFT_CHECK(found == bytes, "{}: expected {} bytes ({}), found {}", path, bytes, what, found);
  return read_all(file, path, bytes);
}

std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().native().front() != '.') entries.push_back(it->path());
  }
  WEFT_CHECK(!error, "{}: cannot read the directory: {}", directory.string(), error.message());
  std::sort(entries.begin(), entries.end(),
            [](const std::filesystem::path& a, const std::filesystem::path& b) {
              return a.filename().native() < b.filename().native();
            });
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
