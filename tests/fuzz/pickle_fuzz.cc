// libFuzzer target: the input is the pickle of an archive that is otherwise in order, with one
// storage of 64 bytes. The checksums of an archive would keep mutations of it from getting this
// far.
#include <string>

#include "io/crafted_files.h"
#include "io/pth_reader.h"
#include "tests/fuzz/touch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string pickle(reinterpret_cast<const char*>(data), size);
  const auto file =
      std::make_shared<std::string>(weft::io::crafted::pth(pickle, {std::string(64, '\1')}));
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(file->data()), file->size());
  try {
    weft::fuzz::touch(weft::io::read_pth(bytes, file, "input").tensors);
  } catch (const weft::Error&) {
  }
  return 0;
}
