// Weft's half of view_programs.py: what random programs of views and in-place ops compute.
//
//   view_programs FIRST_SEED COUNT
//
// Prints a JSON object a line: the program as Python source, the variables of its final sum and
// their weights, and Weft's values and gradients or the kind of its refusal.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "autograd/testing/view_programs.h"

int main(int argc, char** argv) {
  using namespace weft::view_programs;
  if (argc != 3) {
    std::fputs("usage: view_programs FIRST_SEED COUNT\n", stderr);
    return 2;
  }
  const uint64_t first = std::stoull(argv[1]), count = std::stoull(argv[2]);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed);
    const Outcome outcome = run(program);
    nlohmann::json line = {{"seed", seed},
                           {"source", python_source(program)},
                           {"outputs", program.outputs},
                           {"weights", nlohmann::json::array()},
                           {"leaves", nlohmann::json::array()},
                           {"values", outcome.values},
                           {"gradients", outcome.gradients},
                           {"message", outcome.refusal},
                           {"refusal", refusal_kind(outcome.refusal)}};
    for (size_t k = 0; k < program.outputs.size(); ++k) {
      auto& weights = line["weights"].emplace_back(nlohmann::json::array());
      for (int64_t i = 0; i < 256; ++i) weights.push_back(weight(static_cast<int>(k), i));
    }
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      if (program.inputs[i].requires_grad) line["leaves"].push_back(i);
    }
    std::puts(line.dump().c_str());
  }
}
