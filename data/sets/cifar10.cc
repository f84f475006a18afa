#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/files.h"
#include "data/sets/sets.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr int64_t kPlane = kSide * kSide;
constexpr size_t kRecord = 1 + 3 * kPlane, kRecords = 10000;

std::vector<std::string> batch_files(Part part) {
  if (part == Part::kTest) return {"test_batch.bin"};
  std::vector<std::string> files;
  for (int i = 1; i <= 5; ++i) files.push_back(fmt::format("data_batch_{}.bin", i));
  return files;
}

fs::path batches_directory(const std::string& directory) {
  const fs::path inner = fs::path(directory) / "cifar-10-batches-bin";
  return is_folder(inner) ? inner : fs::path(directory);
}

}  // namespace

bool has_cifar10_batches(const std::string& directory) {
  std::vector<std::string> files = batch_files(Part::kTrain);
  files.push_back(batch_files(Part::kTest)[0]);
  const fs::path batches = batches_directory(directory);
  return std::ranges::any_of(files, [&](const auto& file) { return is_present(batches / file); });
}

DatasetPtr load_cifar10(const std::string& directory, Part part) {
  const fs::path batches = batches_directory(directory);
  const std::vector<std::string> files = batch_files(part);
  std::vector<uint8_t> pixels(files.size() * kRecords * 3 * kPlane);
  std::vector<uint8_t> labels;
  uint8_t* target = pixels.data();
  for (const std::string& file : files) {
    const std::string path = (batches / file).string();
    const std::vector<uint8_t> bytes = read_file(path);
    WEFT_CHECK(bytes.size() == kRecords * kRecord,
               "{}: expected {} bytes (10000 CIFAR-10 records of 3073), found {}", path,
               kRecords * kRecord, bytes.size());
    for (size_t record = 0; record < kRecords; ++record) {
      const uint8_t* source = &bytes[record * kRecord];
      WEFT_CHECK(*source < 10, "{}: record {} has label {}, expected 0 to 9", path, record,
                 *source);
      labels.push_back(*source++);
      for (int64_t p = 0; p < kPlane; ++p) {
        for (int64_t c = 0; c < 3; ++c) *target++ = source[c * kPlane + p];
      }
    }
  }
  return memory_dataset(
      {kSide, kSide, kCifar10Normalization},
      {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"},
      std::move(pixels), std::move(labels));
}

}  // namespace weft::data
