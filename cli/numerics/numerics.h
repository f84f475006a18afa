// What the reports of `weft numerics` share.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/report/html_report.h"
#include "core/dtype.h"

namespace weft::cli {

// One file each, like the commands themselves.
void add_numerics_dot(Command& numerics, Action& action);
void add_numerics_formats(Command& numerics, Action& action);
void add_numerics_gemm(Command& numerics, Action& action);
void add_numerics_probe(Command& numerics, Action& action);
void add_numerics_replay(Command& numerics, Action& action);
void add_numerics_train(Command& numerics, Action& action);

/// What options that several of them have take.
inline constexpr const char* kFormatHelp = "Format of the operands: fp16, bf16, tf32, e4m3 or e5m2";
inline constexpr const char* kModelsHelp =
    "ieee, pairwise (f32), half (f16), h100 and others as that GPU, h100:f16 with f16 results, "
    "h100+128 with every 128 products added to f32";

/// x in a format, rounded as storage rounds; fp8 saturates, as operands are quantised in practice.
float round_to(double x, DType format);

/// Random operands of a format, from a seed.
///   normal    standard normal numbers
///   uniform   in [0, 1): all products are positive, and truncation's bias shows
///   wide      normal times 2^x, x uniform in [-8, 8]: few terms carry the sum
///   cancel    normal; the second half of the products undoes most of the first
struct Operands {
  std::vector<float> a, b;
};
inline constexpr const char* kDistributions[] = {"normal", "uniform", "wide", "cancel"};
Operands draw_operands(const std::string& distribution, DType format, int64_t count, uint64_t seed,
                       uint64_t stream);

/// What the reports have in common: a page where --html names a file, and JSON or text.
struct Output {
  std::string html;
  bool json = false;
};
void add_output_options(Command& command, Output& output, const char* json_help);

/// Adds the command line that makes the page again, to which it adds --html, and writes the page.
void finish_page(report::Page& page, const Output& output, const std::string& command);

}  // namespace weft::cli
