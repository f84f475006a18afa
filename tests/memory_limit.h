// For tests of what something costs in memory: limits that the system enforces, and what it
// counted. What it has to give: core/available_memory.h.
#pragma once

#include <malloc.h>
#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include "core/available_memory.h"

namespace weft::tests {

/// A field of /proc/self/status, in bytes: VmSize, the address space; RssAnon, memory that is no
/// file's; VmHWM, the most memory ever in use.
inline int64_t status(const std::string& field) { return proc_bytes("/proc/self/status", field); }

/// Has VmHWM begin again at what is in use; false where the system does not let it.
inline bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
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
