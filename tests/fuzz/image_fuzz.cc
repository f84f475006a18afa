// libFuzzer target: any bytes are an image or a weft::Error.
#include <cstdlib>

#include "core/error.h"
#include "data/image.h"

namespace {

/// Pixels cost time and prove nothing.
const int limited = ::setenv("WEFT_MAX_PIXELS", "65536", 1);

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const weft::data::Image image = weft::data::decode_image({data, size}, "input");
    const size_t expected = size_t{3} * image.height * image.width;
    if (limited != 0 || image.pixels.size() != expected || expected == 0) std::abort();
  } catch (const weft::Error&) {
  }
  return 0;
}
