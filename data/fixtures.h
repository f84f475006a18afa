// What the tests of this folder share: images by formula, temporary folders, caught messages.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/image.h"

namespace weft::data {

/// pixel(y, x, c) = 37 x + 59 y + 83 c + 11 x y (c + 1) modulo 256.
inline Image formula_image(int height, int width) {
  Image image(height, width);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        image.at(y, x)[c] = static_cast<uint8_t>(37 * x + 59 * y + 83 * c + 11 * x * y * (c + 1));
      }
    }
  }
  return image;
}

inline uint32_t checksum(const Image& image) {
  return static_cast<uint32_t>(
      crc32(0, image.pixels.data(), static_cast<unsigned>(image.pixels.size())));
}

/// A new folder below the test's own, removed in the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* root = std::getenv("TEST_TMPDIR");
    std::string name = std::string(root ? root : "/tmp") + "/weft_data_XXXXXX";
    WEFT_CHECK(mkdtemp(name.data()), "cannot make {}", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  /// The path of an entry, whose parent folders are made.
  std::string operator/(const std::string& name) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    return path.string();
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  WEFT_CHECK(file.good(), "cannot write {}", path);
}

/// The message of the weft::Error that f throws; empty when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace weft::data
