#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include "core/error.h"
#include "data/files.h"
#include "data/sets/sets.h"
#include "io/quote.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

bool is_image_name(const fs::path& path) {
  const std::string extension = extension_of(path);
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Of a format that others read.
bool is_other_image_name(const fs::path& path) {
  static constexpr std::string_view kOthers[] = {".webp", ".bmp",  ".tif", ".tiff", ".gif",
                                                 ".ppm",  ".avif", ".jp2", ".heic"};
  return std::ranges::count(kOthers, extension_of(path)) > 0;
}

class ImageFolder : public Dataset {
 public:
  ImageFolder(const std::string& directory, int64_t cache_bytes)
      : root_(directory), cache_room_(cache_bytes) {
    WEFT_CHECK(is_folder(root_), "{}: no such directory", directory);
    for (const fs::path& folder : sorted_entries(root_)) {
      if (is_folder(folder)) {
        add_class(folder);
      } else if (is_image_name(folder) || is_other_image_name(folder)) {
        ++left_out_["beside the classes' folders"];
      }
    }
    WEFT_CHECK(!class_names_.empty(), "{}: expected one folder of images per class, found none",
               directory);
    const Image first = read_image(path(0));
    format_ = {first.height, first.width, kImageNetNormalization};
    cache_.resize(size());
  }

  std::string name(int64_t index) const override { return files_.at(index); }
  std::string left_out() const override {
    if (left_out_.empty()) return {};
    int64_t all = 0;
    std::string text;
    for (const auto& [what, count] : left_out_) {
      all += count;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
    }
    return fmt::format(
        "{}: {} images are left out ({}); {} are read, the .jpg, .jpeg and .png "
        "files of each class's folder",
        root_.string(), all, text, size());
  }
  Image image(int64_t index) const override {
    {
      std::lock_guard lock(mutex_of(index));
      if (!cache_.at(index).pixels.empty()) return cache_[index];
    }
    Image image = read_image(path(index));
    const auto bytes = static_cast<int64_t>(image.pixels.size());
    std::lock_guard lock(mutex_of(index));
    if (!cache_[index].pixels.empty()) return image;  // another thread has read it, too
    if (cache_room_.fetch_sub(bytes) >= bytes) {
      cache_[index] = image;
    } else {
      cache_room_ += bytes;
    }
    return image;
  }

 private:
  void add_class(const fs::path& folder) {
    const size_t before = files_.size();
    for (const fs::path& file : sorted_entries(folder)) {
      if (is_image_name(file)) {
        files_.push_back(file.filename().string());
      } else if (is_other_image_name(file)) {
        ++left_out_[extension_of(file)];
      } else if (is_folder(file)) {
        count_nested(file);
      }
    }
    labels_.resize(files_.size(), static_cast<int64_t>(class_names_.size()));
    WEFT_CHECK(files_.size() > before, "{}: class folder without a .jpg, .jpeg or .png file",
               folder.string());
    const std::string name = folder.filename().string();
    WEFT_CHECK(io::is_utf8(name), "{}: expected classes whose names are UTF-8, got {}",
               root_.string(), io::quote(name));
    class_names_.push_back(name);
  }

  void count_nested(const fs::path& folder) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error)) {
      const bool is_image = is_image_name(it->path()) || is_other_image_name(it->path());
      if (is_image) ++left_out_["in folders of a class's folder"];
    }
  }

  std::string path(int64_t index) const {
    return (root_ / class_names_[label(index)] / files_[index]).string();
  }

  std::mutex& mutex_of(int64_t index) const { return mutexes_[index % mutexes_.size()]; }

  fs::path root_;
  std::vector<std::string> files_;           // names
  std::map<std::string, int64_t> left_out_;  // by format or place
  mutable std::vector<Image> cache_;         // filled as images are read, while there is room
  mutable std::atomic<int64_t> cache_room_;  // bytes
  mutable std::array<std::mutex, 64> mutexes_;
};

}  // namespace

DatasetPtr open_image_folder(const std::string& directory, int64_t cache_bytes) {
  return std::make_shared<ImageFolder>(directory, cache_bytes);
}

}  // namespace weft::data
