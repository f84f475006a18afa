// weft numerics formats: what number formats can hold, as a table, JSON and a page.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "cli/json_line.h"
#include "cli/numerics/numerics.h"
#include "numerics/format.h"

namespace weft::cli {
namespace {

using numerics::FixedFormat;
using numerics::FloatFormat;
using numerics::Rounding;

struct Arguments : Output {
  std::vector<std::string> formats;
  double value = 0.1;
};

/// A floating-point or fixed-point format under one name.
struct Format {
  std::string name;
  std::optional<FloatFormat> floating;
  std::optional<FixedFormat> fixed;

  int bits() const { return floating ? floating->bits() : fixed->bits(); }
  double largest() const { return floating ? floating->largest() : fixed->largest(); }
  double smallest() const { return floating ? floating->smallest_subnormal() : fixed->step(); }
  double round(double x, Rounding rounding) const {
    return floating ? floating->round(x, {.rounding = rounding})
                    : fixed->decode(fixed->encode(x, rounding));
  }
  /// The distance between neighbours at x, over x; NaN outside the range.
  double relative_spacing(double x) const {
    if (x > largest()) return NAN;
    if (fixed) return fixed->step() / x;
    const int exponent = std::max(std::ilogb(x), floating->min_exponent());
    return std::ldexp(1.0, exponent - floating->mantissa_bits()) / x;
  }
  /// Every number in [0, limit].
  std::vector<double> numbers(double limit) const {
    std::vector<double> result;
    for (int64_t code = 0; code < int64_t{1} << (bits() - 1); ++code) {
      const double x =
          floating ? floating->decode(static_cast<uint64_t>(code)) : fixed->decode(code);
      if (!(x <= limit)) break;
      result.push_back(x);
    }
    return result;
  }
};

Format parse(const std::string& name) {
  if (!name.starts_with('q')) {
    const FloatFormat format = numerics::parse_format(name);
    return {format.name(), format, std::nullopt};
  }
  int integer_bits = 0, fraction_bits = 0, read = 0;
  const bool parsed =
      std::sscanf(name.c_str(), "q%2d.%2d%n", &integer_bits, &fraction_bits, &read) == 2 &&
      read == static_cast<int>(name.size());
  WEFT_CHECK(parsed,
             "unknown format \"{}\": fixed point is q<integer bits>.<fraction bits>, like q3.4",
             name);
  const FixedFormat format(integer_bits, fraction_bits);
  return {format.name(), std::nullopt, format};
}

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5;
}

/// A power of two as one, other numbers as they are.
std::string show(double x) {
  if (is_power_of_two(x) && (x > 1e4 || x < 1e-2)) return fmt::format("2^{}", std::ilogb(x));
  return fmt::format("{:.7g}", x);
}

nlohmann::ordered_json describe(const Format& format, double value) {
  nlohmann::ordered_json row = {{"format", format.name}, {"bits", format.bits()}};
  if (format.floating) {
    const FloatFormat& f = *format.floating;
    row["exponent_bits"] = f.exponent_bits();
    row["mantissa_bits"] = f.mantissa_bits();
    row["infinity"] = f.specials() == numerics::Specials::kIeee;
    row["largest"] = f.largest();
    row["smallest_normal"] = f.smallest_normal();
    row["smallest_subnormal"] = f.smallest_subnormal();
    row["epsilon"] = f.epsilon();
    row["unit_roundoff"] = f.unit_roundoff();
  } else {
    row["largest"] = format.fixed->largest();
    row["smallest"] = format.fixed->smallest();
    row["step"] = format.fixed->step();
  }
  row["value"] = value;
  for (const auto& [key, rounding] : {std::pair{"nearest_even", Rounding::kNearestEven},
                                      std::pair{"nearest_away", Rounding::kNearestAway},
                                      std::pair{"toward_zero", Rounding::kTowardZero}}) {
    row[key] = format.round(value, rounding);
  }
  return row;
}

report::Table format_table(const std::vector<Format>& formats) {
  report::Table table = {.columns = {"format", "bits", "exponent", "mantissa", "largest",
                                     "smallest normal", "smallest subnormal", "epsilon",
                                     "unit roundoff", "infinity"}};
  for (const Format& format : formats) {
    if (!format.floating) {
      table.rows.push_back({format.name, std::to_string(format.bits()), "-", "-",
                            show(format.largest()), "-", show(format.smallest()), "-", "-", "no"});
      continue;
    }
    const FloatFormat& f = *format.floating;
    table.rows.push_back({f.name(), std::to_string(f.bits()), std::to_string(f.exponent_bits()),
                          std::to_string(f.mantissa_bits()), show(f.largest()),
                          show(f.smallest_normal()), show(f.smallest_subnormal()),
                          show(f.epsilon()), show(f.unit_roundoff()),
                          f.specials() == numerics::Specials::kIeee ? "yes" : "no"});
  }
  return table;
}

report::Table value_table(const std::vector<Format>& formats, double value) {
  report::Table table = {.columns = {"format", "nearest even", "nearest away", "toward zero",
                                     "relative error, nearest"}};
  for (const Format& format : formats) {
    const double nearest = format.round(value, Rounding::kNearestEven);
    table.rows.push_back({format.name, fmt::format("{:.9g}", nearest),
                          fmt::format("{:.9g}", format.round(value, Rounding::kNearestAway)),
                          fmt::format("{:.9g}", format.round(value, Rounding::kTowardZero)),
                          fmt::format("{:.2e}", std::abs(nearest - value) / std::abs(value))});
  }
  return table;
}

report::NumberLine number_line(const std::vector<Format>& formats, double limit) {
  report::NumberLine line = {
      .title = fmt::format("Every number up to {}", limit),
      .x = {.label = "value", .min = 0, .max = limit},
      .caption =
          "Formats of at most 10 bits. Tall marks are powers of two: between two of them a "
          "floating-point format has equally many numbers, fixed point has equal steps."};
  for (const Format& format : formats) {
    if (format.bits() > 10) continue;
    line.rows.push_back({.name = format.name, .points = format.numbers(limit)});
    std::ranges::copy_if(line.rows.back().points, std::back_inserter(line.rows.back().tall),
                         is_power_of_two);
  }
  return line;
}

void write_page(const std::vector<Format>& formats, const Arguments& a) {
  report::Page page("Number formats", "what each can hold, and how finely");
  report::Table table = format_table(formats);
  table.caption =
      "Epsilon is the distance from 1 to the next number, unit roundoff half of it. "
      "For fixed point q<i>.<f>, code k stands for k / 2^f; its smallest number is its step.";
  page.add(table);

  page.heading("Range");
  report::BarChart range = {.title = "Binades between the smallest and the largest positive number",
                            .x = {.label = "range", .unit = "powers of two"},
                            .groups = {{"range", {}}},
                            .caption = "log2(largest / smallest subnormal)"};
  for (const Format& format : formats) {
    range.categories.push_back(format.name);
    range.groups[0].values.push_back(std::log2(format.largest() / format.smallest()));
  }
  page.add(range);

  page.heading("Precision");
  report::LinePlot spacing = {
      .title = "Distance to the next number, relative to the value",
      .x = {.label = "value", .scale = report::Scale::kLog2, .min = 0x1p-30, .max = 0x1p20},
      .y = {.label = "spacing / value", .scale = report::Scale::kLog2, .max = 1},
      .caption =
          "Floating point keeps its relative precision between its smallest normal number, "
          "where the line starts to climb to the left, and its largest, where it ends. "
          "Fixed point loses a bit with every halving."};
  for (const Format& format : formats) {
    report::Series series = {.name = format.name};
    for (double e = -30; e <= 20; e += 0.125) {
      const double x = std::exp2(e), y = format.relative_spacing(x);
      series.x.push_back(x);
      series.y.push_back(y <= 1 ? y : NAN);
    }
    if (format.fixed) series.mark = report::Mark::kDashed;
    spacing.series.push_back(series);
  }
  page.add(spacing);
  for (const double limit : {4.0, 0.25}) {
    const report::NumberLine line = number_line(formats, limit);
    if (!line.rows.empty()) page.add(line);
  }

  page.heading(fmt::format("{} in each format", a.value));
  page.add(value_table(formats, a.value));
  std::string names;
  for (const Format& format : formats) names += " " + format.name;
  finish_page(page, a, fmt::format("formats{} --value {}", names, a.value));
}

int run(const Arguments& a) {
  std::vector<Format> formats;
  for (const std::string& name : a.formats) {
    formats.push_back(as_usage([&] { return parse(name); }));
  }
  if (a.json) {
    for (const Format& format : formats) print_json(describe(format, a.value));
  } else {
    print_table(format_table(formats));
    fmt::print("\n{} in each format:\n", a.value);
    print_table(value_table(formats, a.value));
  }
  if (!a.html.empty()) write_page(formats, a);
  return 0;
}

}  // namespace

void add_numerics_formats(Command& numerics, Action& action) {
  const auto [command, a] = add_command<Arguments>(numerics, action, run, "formats",
                                                   "Show range and precision of number formats");
  a.formats = {"fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "q3.4"};
  command.option("FORMAT", a.formats,
                 "Formats to show: fp32, tf32, fp16, bf16, e4m3, e5m2; e<E>m<M> of E exponent "
                 "and M mantissa bits, e<E>m<M>fn without infinities; q<I>.<F> for fixed point");
  command.option("--value", a.value, "A number that is rounded to each format");
  add_output_options(command, a, "Print a JSON object for each format");
}

}  // namespace weft::cli
