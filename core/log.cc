#include "core/log.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "core/error.h"

namespace weft {

int log_level() {
  static const int level = [] {
    const char* const text = std::getenv("WEFT_LOG");
    if (!text) return 0;
    int value = 0;
    const char* const end = text + std::strlen(text);
    const auto [last, error] = std::from_chars(text, end, value);
    WEFT_CHECK(error == std::errc() && last == end && value >= 0,
               "WEFT_LOG: expected a level such as 0 or 1, got \"{}\"", text);
    return value;
  }();
  return level;
}

void log_once(const std::string& line) {
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard lock(mutex);
  if (said.insert(line).second) std::fprintf(stderr, "weft: %s\n", line.c_str());
}

}  // namespace weft
