// Reading whole files with errors that name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::data {

/// The bytes of a file. Throws Error naming the path and the system's reason.
std::vector<uint8_t> read_file(const std::string& path);

/// As read_file; throws unless the file has exactly `bytes` bytes, naming `what` was expected.
std::vector<uint8_t> read_file_of_size(const std::string& path, int64_t bytes,
                                       const std::string& what);

}  // namespace weft::data
