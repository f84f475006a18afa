#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace weft::data
