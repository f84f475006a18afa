#include "dist/comm/fault.h"

#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace weft::dist {

Fault Fault::from_environment() {
  const char* const text = std::getenv("WEFT_DIST_FAULT");
  if (!text) return {};
  constexpr std::string_view kNames[] = {"", "shape", "order", "lost", "garbled"};
  char name[8] = {}, rest = 0;
  int rank = -1;
  long long at = -1;
  if (std::sscanf(text, "%7[a-z]:%d:%lld%c", name, &rank, &at, &rest) == 3 && rank >= 0 &&
      at >= 0) {
    for (uint8_t kind = 1; kind < std::size(kNames); ++kind) {
      if (name == kNames[kind]) return {static_cast<Kind>(kind), rank, static_cast<uint64_t>(at)};
    }
  }
  WEFT_FAIL(
      "WEFT_DIST_FAULT: expected shape:RANK:N, order:RANK:N, lost:RANK:N or garbled:RANK:N, got "
      "\"{}\"",
      text);
}

}  // namespace weft::dist
