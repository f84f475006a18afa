// For tests of what something costs in memory: limits that the system enforces, what it counted,
// and what it has to give.
#pragma once

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace weft::tests {

/// A field of a file of /proc that counts in kB, in bytes.
inline int64_t proc_bytes(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  FAIL(field << " is not in " << path);
  return 0;
}

/// A field of /proc/self/status, in bytes: VmSize, the address space; RssAnon, memory that is no
/// file's; VmHWM, the most memory ever in use.
inline int64_t status(const std::string& field) { return proc_bytes("/proc/self/status", field); }

/// Has VmHWM begin again at what is in use; false where the system does not let it.
inline bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

/// What the process's control groups leave it; nothing where none of them has a limit.
inline std::optional<int64_t> left_by_control_groups() {
  namespace fs = std::filesystem;
  std::ifstream groups("/proc/self/cgroup");
  std::optional<int64_t> least;
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    const fs::path root = "/sys/fs/cgroup";
    for (fs::path group = root / line.substr(4);; group = group.parent_path()) {
      int64_t limit = 0, used = 0;
      // A group without a limit has the word max there, and the root has no such file.
      if (std::ifstream(group / "memory.max") >> limit) {
        std::ifstream stat(group / "memory.stat");
        // Pages of files are given back when memory is short.
        for (std::string field; used == 0 && stat >> field;) {
          if (field == "anon") stat >> used;
        }
        least = std::min(least.value_or(limit), limit - used);
      }
      if (group == root) break;
    }
  }
  return least;
}

/// Bytes that this process can still take: what the system has available, or less where control
/// groups or a limit of its own (ulimit -v) say so.
inline int64_t available_memory() {
  int64_t bytes = proc_bytes("/proc/meminfo", "MemAvailable");
  if (const std::optional<int64_t> left = left_by_control_groups()) bytes = std::min(bytes, *left);
  rlimit own;
  if (::getrlimit(RLIMIT_AS, &own) == 0 && own.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(bytes, static_cast<int64_t>(own.rlim_cur) - status("VmSize"));
  }
  return bytes;
}

/// While it lives, the process may take `bytes` more of address space than it has.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(int64_t bytes) {
    ::malloc_trim(0);  // what was freed before is not for free
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(status("VmSize") + bytes);
    if (::setrlimit(RLIMIT_AS, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_;
};

}  // namespace weft::tests
