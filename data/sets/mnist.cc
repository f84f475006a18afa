#include <fmt/ranges.h>

#include <filesystem>

#include "core/error.h"
#include "data/files.h"
#include "data/sets/sets.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

constexpr Normalization kNormalization = {{0.1307f, 0.1307f, 0.1307f}, {0.3081f, 0.3081f, 0.3081f}};

struct Idx {
  std::string path;
  std::vector<uint32_t> sizes;
  std::vector<uint8_t> bytes;  // the file's; values begin at `offset`
  size_t offset = 0;
};

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

Idx read_idx(const std::string& directory, const std::string& stem, int dims) {
  Idx idx;
  idx.path = (fs::path(directory) / fmt::format("{}-idx{}-ubyte", stem, dims)).string();
  const fs::path dotted = fs::path(directory) / fmt::format("{}.idx{}-ubyte", stem, dims);
  if (!is_present(idx.path) && is_present(dotted)) idx.path = dotted.string();
  idx.bytes = read_file(idx.path);
  idx.offset = 4 + 4 * dims;
  WEFT_CHECK(idx.bytes.size() >= idx.offset, "{}: expected an IDX header of {} bytes, found {}",
             idx.path, idx.offset, idx.bytes.size());
  const uint32_t magic = big_endian(idx.bytes.data()), expected = 0x800 + dims;
  WEFT_CHECK(magic == expected, "{}: expected IDX magic number {:#010x}, found {:#010x}", idx.path,
             expected, magic);
  // Sizes of 32 bits: their product is compared in 128, where it cannot overflow.
  unsigned __int128 values = 1;
  for (int d = 0; d < dims; ++d) {
    idx.sizes.push_back(big_endian(&idx.bytes[4 + 4 * d]));
    values *= idx.sizes.back();
  }
  const unsigned __int128 bytes = idx.offset + values;
  WEFT_CHECK(idx.bytes.size() == bytes, "{}: expected {} bytes for sizes [{}], found {}", idx.path,
             static_cast<uint64_t>(bytes), fmt::join(idx.sizes, ", "), idx.bytes.size());
  return idx;
}

}  // namespace

DatasetPtr load_mnist(const std::string& directory, Part part) {
  const std::string stem = part == Part::kTrain ? "train" : "t10k";
  const Idx images = read_idx(directory, stem + "-images", 3);
  const Idx labels = read_idx(directory, stem + "-labels", 1);
  WEFT_CHECK(images.sizes[0] == labels.sizes[0], "{}: {} labels for the {} images of {}",
             labels.path, labels.sizes[0], images.sizes[0], images.path);
  WEFT_CHECK(images.bytes.size() > images.offset, "{}: holds no pixels, sizes [{}]", images.path,
             fmt::join(images.sizes, ", "));
  for (size_t i = labels.offset; i < labels.bytes.size(); ++i) {
    WEFT_CHECK(labels.bytes[i] < 10, "{}: label {} is {}, expected 0 to 9", labels.path,
               i - labels.offset, labels.bytes[i]);
  }
  std::vector<uint8_t> pixels;
  pixels.reserve(3 * (images.bytes.size() - images.offset));
  for (size_t i = images.offset; i < images.bytes.size(); ++i) {
    pixels.insert(pixels.end(), 3, images.bytes[i]);
  }
  return memory_dataset(
      {static_cast<int>(images.sizes[1]), static_cast<int>(images.sizes[2]), kNormalization},
      {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, std::move(pixels),
      {labels.bytes.begin() + static_cast<ptrdiff_t>(labels.offset), labels.bytes.end()});
}

}  // namespace weft::data
