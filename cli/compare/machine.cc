#include "cli/compare/machine.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace weft::cli {
namespace {

constexpr std::array kInstructionSets = {
    "sse4_2",      "avx",         "fma",         "avx2",     "avx_vnni", "avx512f", "avx512bw",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd",    "sve",     "bf16"};

std::string first_word(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

std::string caches() {
  std::string text;
  for (int i = 0;; ++i) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    const std::string level = first_word(folder + "level"), type = first_word(folder + "type");
    if (level.empty()) break;
    if (type == "Instruction") continue;
    text += fmt::format("{}L{}{} {}", text.empty() ? "" : ", ", level, type == "Data" ? "d" : "",
                        first_word(folder + "size"));
  }
  return text.empty() ? "unknown" : text;
}

}  // namespace

nlohmann::ordered_json describe_machine() {
  std::set<std::string> sockets, flags;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (line.starts_with("physical id")) sockets.insert(line.substr(colon));
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(colon + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  std::string known;
  for (const std::string set : kInstructionSets) {
    if (flags.contains(set)) known += (known.empty() ? "" : " ") + set;
  }
  return {{"sockets", sockets.empty() ? 1 : sockets.size()},
          {"caches", caches()},
          {"instruction_sets", known.empty() ? "unknown" : known}};
}

}  // namespace weft::cli
