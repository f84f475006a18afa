#include "io/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace weft::io {
namespace {

FileOperationHook& hook() {
  static FileOperationHook instance;
  return instance;
}

void announce(std::string_view operation, const Path& path) {
  if (hook()) hook()(operation, path);
}

[[noreturn]] void fail_with_errno(const char* verb, const Path& path, int error = errno) {
  WEFT_FAIL("cannot {} {}: {}", verb, path.string(), std::strerror(error));
}

Path parent_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

/// Writes in pieces: a single write() takes at most 2 GiB.
constexpr size_t kLargestWrite = size_t{1} << 30;

}  // namespace

void set_file_operation_hook(FileOperationHook new_hook) { hook() = std::move(new_hook); }

FileWriter::FileWriter(Path path, Path name)
    : path_(std::move(path)), name_(name.empty() ? path_ : std::move(name)) {
  announce("create", path_);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_with_errno("create", name_);
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  announce("write", path_);
  const char* next = static_cast<const char*>(data);
  summary_.crc32 = crc32_of(std::as_bytes(std::span(next, bytes)), summary_.crc32);
  summary_.bytes += bytes;
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, kLargestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno("write", name_);
    if (written == 0) fail_with_errno("write", name_, ENOSPC);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void FileWriter::overwrite(uint64_t offset, std::string_view text) {
  announce("write", path_);
  const ssize_t written =
      ::pwrite(descriptor_, text.data(), text.size(), static_cast<off_t>(offset));
  if (written < 0) fail_with_errno("write", name_);
  if (static_cast<size_t>(written) != text.size()) fail_with_errno("write", name_, ENOSPC);
}

FileSummary FileWriter::finish() {
  announce("sync", path_);
  if (::fsync(descriptor_) != 0) fail_with_errno("write", name_);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    fail_with_errno("write", name_, error);
  }
  return summary_;
}

FileSummary write_file_atomically(const Path& named, const std::function<void(FileWriter&)>& fill) {
  // A link stays one; what is no file, as /dev/null, must not become one.
  std::error_code error;
  const bool is_link = std::filesystem::is_symlink(named, error);
  const Path target = is_link ? std::filesystem::canonical(named, error) : Path();
  const Path path = target.empty() ? named : target;
  WEFT_CHECK(!std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error),
             "cannot write {}: it is there, and no regular file", named.string());
  const Path directory = parent_of(path);
  const Path hidden = directory / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid());
  FileSummary summary;
  {
    FileWriter writer(hidden, path);
    fill(writer);
    summary = writer.finish();
  }
  try {
    rename_path(hidden, path);
  } catch (...) {
    ::unlink(hidden.c_str());
    throw;
  }
  sync_directory(directory);
  return summary;
}

std::string read_text(const Path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

MappedFile::MappedFile(Path path) : path_(std::move(path)) {
  // Without O_NONBLOCK a pipe's name would wait for a writer.
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_with_errno("read", path_);
  struct stat status;
  int error = ::fstat(descriptor, &status) != 0 ? errno : 0;
  if (error == 0 && S_ISDIR(status.st_mode)) error = EISDIR;
  const bool is_file = error == 0 && S_ISREG(status.st_mode);
  if (is_file && status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    // A file may be larger than the memory; only pages that are changed take any.
    void* mapped =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      error = errno;
    } else {
      data_ = static_cast<std::byte*>(mapped);
    }
  }
  if (error == 0 && is_file) {
    descriptor_ = descriptor;
    return;
  }
  ::close(descriptor);
  if (error != 0) fail_with_errno("read", path_, error);
  WEFT_FAIL("cannot read {}: not a regular file", path_.string());
}

uint32_t MappedFile::crc32_of(std::span<const std::byte> part, uint32_t before) const {
  WEFT_ASSERT(part.empty() || (part.data() >= data_ && part.size() <= size_ &&
                               part.data() - data_ <= static_cast<ptrdiff_t>(size_ - part.size())));
  std::array<std::byte, size_t{1} << 16> piece;
  uint32_t crc32 = before;
  for (size_t done = 0; done < part.size();) {
    const size_t most = std::min(piece.size(), part.size() - done);
    const off_t offset = part.data() - data_ + static_cast<off_t>(done);
    const ssize_t n = ::pread(descriptor_, piece.data(), most, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno("read", path_);
    WEFT_CHECK(n > 0, "cannot read {}: it was cut short", path_.string());
    crc32 = io::crc32_of(std::span(piece).first(static_cast<size_t>(n)), crc32);
    done += static_cast<size_t>(n);
  }
  return crc32;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before) {
  return static_cast<uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

std::string checksum_text(uint32_t crc32) { return fmt::format("{:08x}", crc32); }

std::string checksum_of(std::span<const std::byte> bytes) { return checksum_text(crc32_of(bytes)); }
std::string checksum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

std::string checksum_around(std::span<const std::byte> bytes, size_t offset, const Crc32Of& crc32) {
  WEFT_ASSERT(offset + kNoChecksum.size() <= bytes.size());
  uint32_t sum = crc32(bytes.first(offset), 0);
  sum = crc32_of(std::as_bytes(std::span(kNoChecksum)), sum);
  return checksum_text(crc32(bytes.subspan(offset + kNoChecksum.size()), sum));
}

void make_directories(const Path& path) {
  announce("mkdir", path);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  WEFT_CHECK(!error, "cannot create the directory {}: {}", path.string(), error.message());
}

void make_directory(const Path& path) {
  announce("mkdir", path);
  std::error_code error;
  std::filesystem::create_directory(path, error);
  WEFT_CHECK(!error, "cannot create the directory {}: {}", path.string(), error.message());
}

void rename_path(const Path& from, const Path& to) {
  announce("rename", to);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_with_errno("write", to);
}

void remove_tree(const Path& path) {
  announce("remove", path);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  WEFT_CHECK(!error, "cannot remove {}: {}", path.string(), error.message());
}

void sync_directory(const Path& path) {
  announce("sync", path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_with_errno("open", path);
  // Some network file systems cannot sync directories and say so with EINVAL.
  const int error = ::fsync(descriptor) != 0 && errno != EINVAL ? errno : 0;
  ::close(descriptor);
  if (error != 0) fail_with_errno("sync", path, error);
}

void apply_file_fault_of_environment() {
  const char* const variable = std::getenv("WEFT_FILE_FAULT");
  if (!variable) return;
  const std::string text = variable;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon);
  const int error = kind == "ENOSPC" ? ENOSPC : kind == "EIO" ? EIO : 0;
  const int64_t at = std::atoll(text.c_str() + std::min(colon + 1, text.size()));
  WEFT_CHECK((error != 0 || kind == "kill") && at > 0,
             "WEFT_FILE_FAULT is \"{}\": expected kill:N, ENOSPC:N or EIO:N", text);
  auto left = std::make_shared<std::atomic<int64_t>>(at);
  set_file_operation_hook([=](std::string_view operation, const Path& path) {
    if (--*left != 0) return;
    if (error == 0) ::raise(SIGKILL);
    WEFT_FAIL("cannot {} {}: {}", operation, path.string(), std::strerror(error));
  });
}

namespace {

/// Who has the lock, as its file says: a moment later than it is locked. A full disk takes no name.
std::string owner_in(int locked) {
  char owner[256] = {};
  for (int tries = 0; tries < 200; ++tries) {
    if (::pread(locked, owner, sizeof owner - 1, 0) > 0) return owner;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "another process";
}

}  // namespace

DirectoryLock::DirectoryLock(const Path& directory) : file_(directory / ".lock") {
  announce("lock", file_);
  while (true) {
    descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) fail_with_errno("create", file_);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      const std::string owner = owner_in(descriptor_);
      ::close(descriptor_);
      WEFT_FAIL("{} is in use by {}", directory.string(), owner);
    }
    // Who had the lock removes the file: this may be one that has no name any more.
    struct stat locked, named;
    if (::fstat(descriptor_, &locked) == 0 && ::stat(file_.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino) {
      break;
    }
    ::close(descriptor_);
  }
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string owner = fmt::format("process {} on {}", ::getpid(), host);
  // Who is named is a help alone: a full disk takes nothing from the lock.
  if (::ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, owner.data(), owner.size(), 0);
  }
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ < 0) return;
  ::unlink(file_.c_str());
  ::close(descriptor_);
}

}  // namespace weft::io
