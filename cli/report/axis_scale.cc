#include "cli/report/svg_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace weft::report {
namespace {

constexpr int kMostTicks = 8;

std::string raised(int exponent) {
  static const char* const kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = exponent < 0 ? "⁻" : "";
  for (char c : std::to_string(std::abs(exponent))) text += kDigits[c - '0'];
  return text;
}

/// 1, 2 or 5 times a power of ten: the least that cuts the range into at most kMostTicks parts.
double tick_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / kMostTicks)));
  for (double step : {1.0, 2.0, 5.0}) {
    if (range / (step * power) <= kMostTicks) return step * power;
  }
  return 10 * power;
}

}  // namespace

AxisScale::AxisScale(const Axis& axis, const std::vector<double>& values)
    : scale_(axis.scale), min_(HUGE_VAL), max_(-HUGE_VAL) {
  for (double value : values) {
    if (!std::isfinite(value) || (scale_ != Scale::kLinear && value <= 0)) continue;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }
  if (min_ > max_) min_ = max_ = 1;
  min_ = axis.min.value_or(min_);
  max_ = axis.max.value_or(max_);

  if (scale_ == Scale::kLinear) {
    if (!(max_ > min_)) {
      const double margin = min_ == 0 ? 1 : std::abs(min_) / 2;
      min_ -= margin;
      max_ += margin;
    }
    const double step = tick_step(max_ - min_);
    if (!axis.min) min_ = std::floor(min_ / step + 1e-9) * step;
    if (!axis.max) max_ = std::ceil(max_ / step - 1e-9) * step;
    for (double k = std::ceil(min_ / step - 1e-9); k * step <= max_ + 1e-9 * step; ++k) {
      ticks_.push_back({k * step, format_number(k == 0 ? 0 : k * step)});
    }
    return;
  }
  const double base = scale_ == Scale::kLog2 ? 2 : 10;
  const auto logarithm = [&](double x) { return base == 2 ? std::log2(x) : std::log10(x); };
  int first = static_cast<int>(std::floor(logarithm(min_) + 1e-9));
  int last = static_cast<int>(std::ceil(logarithm(max_) - 1e-9));
  if (first == last) {
    --first;
    ++last;
  }
  if (!axis.min) min_ = std::pow(base, first);
  if (!axis.max) max_ = std::pow(base, last);
  const int stride = std::max(1, (last - first + kMostTicks - 1) / kMostTicks);
  const bool plain = base == 2 ? first >= -3 && last <= 16 : first >= -3 && last <= 4;
  for (int k = first; k <= last; ++k) {
    const double value = std::pow(base, k);
    if (k % stride != 0 || value < min_ * (1 - 1e-9) || value > max_ * (1 + 1e-9)) continue;
    ticks_.push_back({value, plain ? format_number(value) : (base == 2 ? "2" : "10") + raised(k)});
  }
}

double AxisScale::transform(double value) const {
  return scale_ == Scale::kLinear ? value : std::log(value);
}

bool AxisScale::shows(double value) const {
  return std::isfinite(value) && (scale_ == Scale::kLinear || value > 0);
}

double AxisScale::at(double value) const {
  const double low = transform(min_), high = transform(max_);
  return (transform(std::clamp(value, min_, max_)) - low) / (high - low);
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value == 0) return "0";
  const std::string sign = value < 0 ? "−" : "";
  const double magnitude = std::abs(value);
  if (magnitude >= 1e6 || magnitude < 1e-3) {
    const std::string text = fmt::format("{:.3e}", magnitude);
    const size_t e = text.find('e');
    std::string digits = text.substr(0, e);
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
    const std::string power = "10" + raised(std::stoi(text.substr(e + 1)));
    return sign + (digits == "1" ? power : digits + "×" + power);
  }
  std::string text = fmt::format("{:.4g}", magnitude);
  if (magnitude >= 1000) {
    text = fmt::format("{:.0f}", magnitude);
    text.insert(text.size() - 3, ",");
  }
  return sign + text;
}

std::string axis_title(const Axis& axis) {
  return axis.unit.empty() ? axis.label : axis.label + " (" + axis.unit + ")";
}

}  // namespace weft::report
