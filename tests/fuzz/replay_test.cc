// Runs a fuzz target over small files, over the pickles in those that are archives, and over a
// fixed number of mutations of each.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "cli/torture/mutation.h"
#include "core/error.h"
#include "io/files.h"
#include "io/zip_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace weft;

constexpr size_t kLargest = 8192;
constexpr size_t kExecutions = 60000;

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

/// The target's own files; of the readers of weights those of io, too.
std::map<std::string, std::string> seeds(const std::string& target) {
  std::map<std::string, std::string> seeds;
  for (const std::string& folder : {std::string("io/testdata"), "tests/fuzz/seeds/" + target}) {
    const bool is_of_weights = target == "safetensors" || target == "pth" || target == "pickle";
    if (folder == "io/testdata" ? !is_of_weights : !std::filesystem::exists(folder)) continue;
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

}  // namespace

TEST_CASE("Files and mutations of them are read or refused") {
  const std::map<std::string, std::string> files = seeds(std::getenv("WEFT_FUZZ_TARGET"));
  REQUIRE(files.size() > 2);
  run("");
  Philox random(1);
  for (const auto& [name, bytes] : files) {
    INFO(name);
    run(bytes);
    for (size_t i = 0; i < kExecutions / files.size(); ++i) {
      INFO("mutation " << i);
      run(cli::mutated(bytes, random));
    }
  }
}
