// How much memory the system can still give this process.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

/// A field of a file of /proc that counts in kB, in bytes: "VmSize" of "/proc/self/status". Throws
/// Error where there is none.
int64_t proc_bytes(const std::string& path, const std::string& field);

/// Bytes that this process can still take: what the system has available, or less where control
/// groups or a limit of its own (ulimit -v) say so.
int64_t available_memory();

}  // namespace weft
