// weft numerics replay: vectors of a real tensor core through its model.
#include <fmt/core.h>

#include <bit>
#include <fstream>
#include <iostream>
#include <map>

#include "cli/json_line.h"
#include "cli/numerics/numerics.h"
#include "numerics/format.h"
#include "numerics/tensor_core_vectors.h"

namespace weft::cli {
namespace {

constexpr int64_t kShown = 10;

struct Arguments {
  std::string file, gpu, format;
  bool json = false;
};

/// A vector made for another format would be rounded, and prove nothing.
void check_operands(const std::vector<float>& values, const char* name,
                    const numerics::FloatFormat& format,
                    const numerics::TensorCoreVectorReader& reader) {
  for (const float x : values) {
    const double stored = format.round(x);
    WEFT_CHECK(std::isnan(x) || stored == x, "{}, line {}: {:08x} in {} is not a number of {}",
               reader.name(), reader.line(), std::bit_cast<uint32_t>(x), name, format.name());
  }
}

int replay(const Arguments& a) {
  const DType input = as_usage([&] { return numerics::parse_operand_format(a.format); });
  as_usage([&] { numerics::tensor_core_model(a.gpu, input, DType::f32); });
  const numerics::FloatFormat format = numerics::parse_format(a.format);

  const bool standard_input = a.file == "-";
  std::ifstream file;
  if (!standard_input) {
    file.open(a.file);
    WEFT_CHECK(file, "{}: cannot be opened", a.file);
  }
  numerics::TensorCoreVectorReader reader(standard_input ? std::cin : file,
                                          standard_input ? "standard input" : a.file);
  numerics::TensorCoreVector vector;
  int64_t rows = 0, mismatches = 0;
  std::map<DType, int64_t> results;
  while (reader.next(vector)) {
    ++rows;
    // The hardware does not read the low bits of tf32 operands; anything may stand there.
    if (input != DType::tf32) {
      check_operands(vector.a, "a", format, reader);
      check_operands(vector.b, "b", format, reader);
    }
    bool differs = false;
    for (const DType output : {DType::f32, DType::f16}) {
      if (!vector.d(output)) continue;
      ++results[output];
      const auto model = numerics::tensor_core_model(a.gpu, input, output);
      const uint32_t expected = std::bit_cast<uint32_t>(*vector.d(output));
      const uint32_t got = std::bit_cast<uint32_t>(numerics::model_result(model, vector));
      if (got == expected) continue;
      differs = true;
      if (mismatches >= kShown) continue;
      if (a.json) {
        print_json({{"line", reader.line()},
                    {"output", name(output)},
                    {"recorded", fmt::format("{:08x}", expected)},
                    {"model", fmt::format("{:08x}", got)}});
      } else {
        fmt::print("line {}: d as {} is {:08x} ({}), the model gives {:08x} ({})\n", reader.line(),
                   output, expected, *vector.d(output), got, std::bit_cast<float>(got));
      }
    }
    mismatches += differs;
  }
  WEFT_CHECK(rows > 0, "{}: holds no vectors", reader.name());
  if (a.json) {
    print_json({{"rows", rows}, {"mismatches", mismatches}});
  } else {
    if (mismatches > kShown) fmt::print("and {} more\n", mismatches - kShown);
    fmt::print("{} {}: {} rows, {} results in f32 and {} in f16, {} rows with a mismatch\n", a.gpu,
               a.format, rows, results[DType::f32], results[DType::f16], mismatches);
  }
  return 0;
}

}  // namespace

void add_numerics_replay(Command& numerics, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      numerics, action, replay, "replay",
      "Compare a tensor core's recorded results with its model, bit for bit");
  command.option("FILE", a.file,
                 "File of operands and results, a | b | c | d as f32 | d as f16 on a line; - for "
                 "standard input",
                 {.required = true});
  command.option("--gpu", a.gpu,
                 "GPU that computed the results: v100, a2, a100, ada, l40s, h100, h200 or b200",
                 {.required = true});
  command.option("--format", a.format, kFormatHelp, {.required = true});
  command.flag("--json", a.json,
               "Print the first mismatches as JSON objects, then {\"rows\":N,\"mismatches\":M}");
}

}  // namespace weft::cli
