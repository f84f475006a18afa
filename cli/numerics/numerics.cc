// weft numerics: number formats, tensor cores and their errors, as reports.
#include "cli/numerics/numerics.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdio>

#include "core/philox.h"

namespace weft::cli {

float round_to(double x, DType format) {
  return visit_dtype(format, [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, f8e4m3> || std::is_same_v<T, f8e5m2>) {
      return static_cast<float>(T(static_cast<float>(x), Overflow::kSaturate));
    } else {
      return static_cast<float>(to_double(from_double<T>(x)));
    }
  });
}

Operands draw_operands(const std::string& distribution, DType format, int64_t count, uint64_t seed,
                       uint64_t stream) {
  Philox random(seed, stream);
  const auto rounded = [&](double x) { return round_to(x, format); };
  const auto draw = [&] {
    if (distribution == "uniform") return rounded(random.uniform());
    const double scale = distribution == "wide" ? std::exp2(random.uniform(-8, 8)) : 1;
    return rounded(random.normal() * scale);
  };
  Operands operands;
  for (int64_t i = 0; i < count; ++i) {
    operands.a.push_back(draw());
    operands.b.push_back(draw());
  }
  if (distribution == "cancel") {
    const int64_t half = count / 2;
    for (int64_t i = 0; i < half; ++i) {
      operands.a[half + i] = -operands.a[i];
      // One code off in about every other term: the sum is small beside its terms, and not zero.
      operands.b[half + i] = rounded(operands.b[i] * (1 + unit_roundoff(format)));
    }
  }
  return operands;
}

void add_output_options(Command& command, Output& output, const char* json_help) {
  command.option("--html", output.html, "Write a page of plots to this file", {.takes = "FILE"});
  command.flag("--json", output.json, json_help);
}

void finish_page(report::Page& page, const Output& output, const std::string& command) {
  page.heading("Repeat");
  page.code(fmt::format("./weft numerics {} --html {}", command, output.html));
  page.write(output.html);
  fmt::print(output.json ? stderr : stdout, "page written to {}\n", output.html);
}

void add_numerics(Command& app, Action& action) {
  Command& numerics = app.subcommand(
      "numerics", "Study number formats, tensor cores bit for bit, and rounding errors",
      kMeasuringCommands);
  numerics.require_subcommand();
  for (const auto add : {add_numerics_formats, add_numerics_dot, add_numerics_gemm,
                         add_numerics_replay, add_numerics_probe, add_numerics_train}) {
    add(numerics, action);
  }
}

}  // namespace weft::cli
