// libFuzzer target: any bytes are safetensors or a weft::Error, and what is read can be touched.
#include "io/safetensors.h"
#include "tests/fuzz/touch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(
      reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
  try {
    weft::fuzz::touch(weft::io::read_safetensors(*bytes, bytes, "input").tensors);
  } catch (const weft::Error&) {
  }
  return 0;
}
