// Runs a fuzz target over small files, over the pickles in those that are archives, and over a
// fixed number of mutations of each.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <string>

#include "core/error.h"
#include "core/philox.h"
#include "io/files.h"
#include "io/zip_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace weft;

constexpr size_t kLargest = 8192;
constexpr int kMutations = 5000;  // of each seed

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

/// The stored pickles of an archive; none of other files.
std::map<std::string, std::string> pickles_in(std::string& file) {
  std::map<std::string, std::string> pickles;
  try {
    for (const io::ZipEntry& entry :
         io::read_zip(std::as_writable_bytes(std::span(file)), "seed")) {
      if (!entry.name.ends_with("data.pkl")) continue;
      pickles[entry.name] = {reinterpret_cast<const char*>(entry.data.data()), entry.data.size()};
    }
  } catch (const Error&) {
  }
  return pickles;
}

std::map<std::string, std::string> seeds() {
  std::map<std::string, std::string> seeds;
  for (const char* folder : {"io/testdata", "tests/fuzz/seeds"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.path().extension() == ".py") continue;
      std::string file = io::read_text(entry.path());
      for (auto& [name, pickle] : pickles_in(file))
        seeds[entry.path().string() + ":" + name] = pickle;
      seeds[entry.path().string()] = file;
    }
  }
  std::erase_if(seeds, [](const auto& seed) { return seed.second.size() > kLargest; });
  return seeds;
}

/// One to four edits: a byte changed, a bit flipped, a range left out, repeated, or the end cut
/// off.
std::string mutated(std::string bytes, Philox& random) {
  const auto edits = 1 + random.below(4);
  for (uint64_t i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = random.below(bytes.size());
    const size_t count = 1 + random.below(std::min<size_t>(16, bytes.size() - at));
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 2:
        bytes.erase(at, count);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, count));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("Files and mutations of them are read or refused") {
  const std::map<std::string, std::string> files = seeds();
  REQUIRE(files.size() > 20);
  run("");
  Philox random(1);
  for (const auto& [name, bytes] : files) {
    INFO(name);
    run(bytes);
    for (int i = 0; i < kMutations; ++i) {
      INFO("mutation " << i);
      run(mutated(bytes, random));
    }
  }
}
