// libFuzzer target: any lines are vectors of a tensor core, or a weft::Error that names the line;
// and a vector is written as it can be read.
#include <cstdlib>
#include <sstream>

#include "core/error.h"
#include "numerics/tensor_core_vectors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::numerics;
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  try {
    TensorCoreVectorReader reader(text, "input");
    for (TensorCoreVector vector; reader.next(vector);) {
      std::istringstream line(format_vector(vector));
      TensorCoreVector again;
      if (!TensorCoreVectorReader(line, "again").next(again)) std::abort();
      if (format_vector(again) != format_vector(vector)) std::abort();
    }
  } catch (const weft::Error&) {
  }
  return 0;
}
