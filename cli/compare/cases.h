// What `weft compare` measures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weft::cli {

struct CompareCase {
  enum class Measure {
    kTime,     // of one iteration, in processes that live as long as the run
    kStartUp,  // of a fresh process, until it has added two numbers
    kMemory,   // most memory of a fresh process that has done the work a few times
  };

  std::string group;  // "training", "inference", "ops", ...
  std::string name;   // unique
  Measure measure = Measure::kTime;
  nlohmann::ordered_json work;     // what both programs are told: cli/compare/work.h
  std::vector<std::string> sides;  // of the peers: "eager", "compile", "jax", ...
  double seconds = 0.15;           // of a turn, unless --seconds says another
};

/// All of them; `directory` holds the files that they read. On a GPU larger training steps are
/// among them, launched kernel by kernel and as CUDA graphs.
std::vector<CompareCase> compare_cases(const std::string& directory, bool on_gpu);

/// Writes those files.
void write_compare_files(const std::string& directory);

}  // namespace weft::cli
