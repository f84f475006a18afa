#include "core/available_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/error.h"

namespace weft {
namespace {

/// What the process's control groups leave it; nothing where none of them has a limit.
std::optional<int64_t> left_by_control_groups() {
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

}  // namespace

int64_t proc_bytes(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  WEFT_FAIL("{}: expected a field {}", path, field);
}

int64_t available_memory() {
  int64_t bytes = proc_bytes("/proc/meminfo", "MemAvailable");
  if (const std::optional<int64_t> left = left_by_control_groups()) bytes = std::min(bytes, *left);
  rlimit own;
  if (::getrlimit(RLIMIT_AS, &own) == 0 && own.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(
        bytes, static_cast<int64_t>(own.rlim_cur) - proc_bytes("/proc/self/status", "VmSize"));
  }
  return bytes;
}

}  // namespace weft
