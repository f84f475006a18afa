// Files that are either complete or absent, whatever stops the program.
//
// What was written is on the disk before it gets its final name: write, fsync, rename, fsync of the
// directory. Errors name the file and the system's reason ("No space left on device") and leave no
// partial file behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace weft::io {

using Path = std::filesystem::path;

struct FileSummary {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // of the bytes, as zlib computes it
};

/// A file being written in order. Removed by the destructor unless finish() was reached.
class FileWriter {
 public:
  /// Creates or empties the file. Errors call it `name`, if that is given.
  explicit FileWriter(Path path, Path name = {});
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Replaces bytes that were written: a checksum of what follows it, say. The summary stays that
  /// of what was written first.
  void overwrite(uint64_t offset, std::string_view text);
  const FileSummary& summary() const { return summary_; }
  /// Brings the file to the disk and closes it.
  FileSummary finish();

 private:
  Path path_, name_;
  int descriptor_;
  FileSummary summary_;
};

/// Lets `fill` write a hidden file beside `path`, which then takes its place.
FileSummary write_file_atomically(const Path& path, const std::function<void(FileWriter&)>& fill);

/// The whole file. Throws Error naming it.
std::string read_text(const Path& path);

/// A regular file's bytes in memory. They may be changed; the file is not. Whoever cuts the file
/// short meanwhile makes reading them fault; writers here replace files and never shorten them.
class MappedFile {
 public:
  explicit MappedFile(Path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const Path& path() const { return path_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  /// io::crc32_of(part, before) of a part of bytes() as the file has it: read and not looked at
  /// through the mapping, whose pages would all come into memory and stay there.
  uint32_t crc32_of(std::span<const std::byte> part, uint32_t before = 0) const;

 private:
  Path path_;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before = 0);
/// Eight hexadecimal digits, as checksums are written.
std::string checksum_text(uint32_t crc32);
/// The same of bytes, or of a text's.
std::string checksum_of(std::span<const std::byte> bytes);
std::string checksum_of(std::string_view text);
/// How a file's bytes are summed: crc32_of, of a mapped file its own.
using Crc32Of = std::function<uint32_t(std::span<const std::byte> bytes, uint32_t before)>;
/// The checksum of a file that holds its own at `offset`, which counts as eight zeros there.
std::string checksum_around(std::span<const std::byte> bytes, size_t offset,
                            const Crc32Of& crc32 = crc32_of);
inline constexpr std::string_view kNoChecksum = "00000000";

// Of std::filesystem's functions, with Error and the hook below.
void make_directories(const Path& path);
/// Makes the last directory of a path, whose others are there.
void make_directory(const Path& path);
void rename_path(const Path& from, const Path& to);
/// Removes a file or a directory with all it holds; nothing when absent.
void remove_tree(const Path& path);
/// Brings the names in a directory to the disk.
void sync_directory(const Path& path);

/// Called before each operation that changes the disk, with its name and path. Tests stop the
/// program there, or throw what a failing disk would.
using FileOperationHook = std::function<void(std::string_view operation, const Path& path)>;
void set_file_operation_hook(FileOperationHook hook);
/// Sets a hook that does what WEFT_FILE_FAULT says at the nth operation: "kill:N" kills the
/// program, "ENOSPC:N" and "EIO:N" throw what a full or a broken disk would. Throws Error for
/// anything else.
void apply_file_fault_of_environment();

/// A directory that is this process's alone while it lives, also when the process is killed. Throws
/// Error that names the process which has it. File systems without locks let everybody in.
class DirectoryLock {
 public:
  explicit DirectoryLock(const Path& directory);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept
      : file_(std::move(other.file_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&&) = delete;

 private:
  Path file_;
  int descriptor_;
};

}  // namespace weft::io
