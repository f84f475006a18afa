#include "data/sets/cifar10.h"

#include <filesystem>

#include "core/error.h"
#include "data/files.h"
#include "data/sets/memory_dataset.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr int64_t kPlane = kSide * kSide;
constexpr int64_t kRecord = 1 + 3 * kPlane;
constexpr int64_t kRecords = 10000;

const std::vector<std::string> kClassNames = {"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};

std::vector<std::string> batch_files(Cifar10Part part) {
  if (part == Cifar10Part::kTest) return {"test_batch.bin"};
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
  const fs::path batches = batches_directory(directory);
  for (const Cifar10Part part : {Cifar10Part::kTrain, Cifar10Part::kTest}) {
    for (const std::string& file : batch_files(part)) {
      if (is_present(batches / file)) return true;
    }
  }
  return false;
}

DatasetPtr load_cifar10(const std::string& directory, Cifar10Part part) {
  const fs::path batches = batches_directory(directory);
  const std::vector<std::string> files = batch_files(part);
  std::vector<uint8_t> pixels(files.size() * kRecords * 3 * kPlane);
  std::vector<uint8_t> labels;
  uint8_t* target = pixels.data();
  for (const std::string& file : files) {
    const std::string path = (batches / file).string();
    const std::vector<uint8_t> bytes =
        read_file_of_size(path, kRecords * kRecord, "10000 CIFAR-10 records of 3073");
    for (int64_t record = 0; record < kRecords; ++record) {
      const uint8_t* source = &bytes[record * kRecord];
      WEFT_CHECK(*source < 10, "{}: record {} has label {}, expected 0 to 9", path, record,
                 *source);
      labels.push_back(*source++);
      for (int64_t p = 0; p < kPlane; ++p) {
        for (int64_t c = 0; c < 3; ++c) *target++ = source[c * kPlane + p];
      }
    }
  }
  return std::make_shared<MemoryDataset>(ImageFormat{kSide, kSide, kCifar10Normalization},
                                         kClassNames, std::move(pixels), std::move(labels));
}

}  // namespace weft::data
