#include "kernels/simt/symbol.h"

#include <backtrace.h>
#include <fmt/core.h>

#include <map>
#include <vector>

namespace weft::simt {
namespace {

constexpr Place kIsCall = 0x80000000u;
constexpr int kMaxFrames = 3;

/// Addresses are kept relative to this function, so that 31 bits hold them.
intptr_t base() { return reinterpret_cast<intptr_t>(&base) - (intptr_t{1} << 30); }

struct CallSites {
  std::vector<Site> sites = {Site()};
  std::map<std::pair<const char*, unsigned>, Place> places;
};

CallSites& call_sites() {
  static CallSites sites;
  return sites;
}

/// Paths as the build names them, without what lies before the repository.
std::string shortened(const char* file) {
  const std::string path = file;
  const size_t start = path.rfind("/kernels/");
  return start == std::string::npos ? path : path.substr(start + 1);
}

backtrace_state* backtraces() {
  static backtrace_state* const state = backtrace_create_state(
      nullptr, 0, [](void*, const char*, int) {}, nullptr);
  return state;
}

}  // namespace

Place place_of(const void* pc) {
  return static_cast<Place>(reinterpret_cast<intptr_t>(pc) - 1 - base()) & ~kIsCall;
}

Place place_of(const Site& site) {
  CallSites& calls = call_sites();
  Place& place = calls.places[{site.file_name(), site.line()}];
  if (place == 0) {
    place = static_cast<Place>(calls.sites.size()) | kIsCall;
    calls.sites.push_back(site);
  }
  return place;
}

std::string to_string(const Site& site) {
  return fmt::format("{}:{}", shortened(site.file_name()), site.line());
}

std::string to_string(Place place) {
  if (place == 0) return "an unknown place";
  if (place & kIsCall) return to_string(call_sites().sites[place & ~kIsCall]);
  struct Frames {
    std::string text;
    int count = 0;
  } frames;
  backtrace_pcinfo(
      backtraces(), static_cast<uintptr_t>(base() + static_cast<intptr_t>(place)),
      [](void* data, uintptr_t, const char* file, int line, const char*) {
        auto& frames = *static_cast<Frames*>(data);
        if (file == nullptr || ++frames.count > kMaxFrames) return 0;
        frames.text += fmt::format("{}{}:{}", frames.count > 1 ? " < " : "", shortened(file), line);
        return 0;
      },
      [](void*, const char*, int) {}, &frames);
  return frames.text.empty() ? "code without debugging information" : frames.text;
}

}  // namespace weft::simt
