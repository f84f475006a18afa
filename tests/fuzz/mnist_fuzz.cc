// libFuzzer target: two IDX files of any bytes are a data set or a weft::Error. The first byte says
// where the second file begins.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "data/sets/sets.h"

namespace {

/// A folder of this process, removed in the end.
struct Folder {
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const uint8_t* data, size_t size) const {
    std::ofstream(path / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("weft-mnist-fuzz-" + std::to_string(::getpid()));
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  if (size == 0) return 0;
  const size_t images = std::min<size_t>(data[0], size - 1);
  folder.write("t10k-images-idx3-ubyte", data + 1, images);
  folder.write("t10k-labels-idx1-ubyte", data + 1 + images, size - 1 - images);
  try {
    const auto set = weft::data::load_mnist(folder.path.string(), weft::data::Part::kTest);
    if (set->size() == 0) std::abort();
    for (int64_t i = 0; i < set->size(); ++i) set->image(i);
  } catch (const weft::Error&) {
  }
  return 0;
}
