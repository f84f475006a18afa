#include "kernels/simt/symbol.h"

#include <backtrace.h>
#include <fmt/core.h>

#include <array>
#include <map>
#include <vector>

namespace weft::simt {
namespace {

constexpr Place kIsCall = 0x80000000u;
constexpr int kMaxFrames = 3;

// Addresses are kept in 31 bits: a region of 16 MB, numbered from 1 as code in it is first met, and
// the offset in it. So the program and whatever it loads may lie far apart.
constexpr int kOffsetBits = 24, kRegionBits = 7;
using Regions = std::array<uintptr_t, 1 << kRegionBits>;

Regions& regions() {
  static Regions the_regions = {};
  return the_regions;
}

Place number_of_region(uintptr_t region) {
  Regions& known = regions();
  for (size_t i = 1; i < known.size(); ++i) {
    if (known[i] == 0) known[i] = region;
    if (known[i] == region) return static_cast<Place>(i);
  }
  return 0;
}

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
  const uintptr_t address = reinterpret_cast<uintptr_t>(pc) - 1;
  const auto offset = static_cast<Place>(address & ((1u << kOffsetBits) - 1));
  return number_of_region(address >> kOffsetBits) << kOffsetBits | offset;
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
  const uintptr_t region = regions()[place >> kOffsetBits];
  backtrace_pcinfo(
      backtraces(), region << kOffsetBits | (place & ((1u << kOffsetBits) - 1)),
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
