// Files and folders with errors that name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace weft::data {

/// The bytes of a file, of no more than `most`. Throws Error naming the path and the system's
/// reason.
std::vector<uint8_t> read_file(const std::string& path, int64_t most = INT64_MAX);

/// The entries of a directory, names with a leading dot left out, in byte order of their names.
/// Throws Error naming the directory.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& directory);

/// False also for what cannot be examined; opening it then says why.
bool is_folder(const std::filesystem::path& path);
bool is_present(const std::filesystem::path& path);

}  // namespace weft::data
