// libFuzzer target: two IDX files of any bytes are a data set or a weft::Error. The first byte says
// where the second file begins.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/error.h"
#include "data/sets/sets.h"

namespace {

/// A file in memory, which a name in a folder leads to: on a disk each execution would wait for it.
class File {
 public:
  explicit File(const std::filesystem::path& name) : descriptor_(::memfd_create("fuzz", 0)) {
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(descriptor_), name);
  }
  void write(const uint8_t* data, size_t size) const {
    const bool is_written = ::ftruncate(descriptor_, 0) == 0 &&
                            ::pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size);
    if (!is_written) std::abort();
  }

 private:
  const int descriptor_;
};

/// A folder of this process, removed in the end; one of that name is a killed process's.
struct Folder {
  Folder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("weft-mnist-fuzz-" + std::to_string(::getpid()));
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  static const File image_file(folder.path / "t10k-images-idx3-ubyte");
  static const File label_file(folder.path / "t10k-labels-idx1-ubyte");
  if (size == 0) return 0;
  const size_t images = std::min<size_t>(data[0], size - 1);
  image_file.write(data + 1, images);
  label_file.write(data + 1 + images, size - 1 - images);
  try {
    const auto set = weft::data::load_mnist(folder.path.string(), weft::data::Part::kTest);
    if (set->size() == 0) std::abort();
    for (int64_t i = 0; i < set->size(); ++i) set->image(i);
  } catch (const weft::Error&) {
  }
  return 0;
}
