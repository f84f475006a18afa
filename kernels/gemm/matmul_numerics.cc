#include "kernels/gemm/matmul_numerics.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "io/nearest.h"

namespace weft::kernels {
namespace {

thread_local MatmulSettings the_settings;

constexpr std::pair<std::string_view, Accumulation> kNames[] = {
    {"ieee", Accumulation::kIeee}, {"exact", Accumulation::kExact}, {"v100", Accumulation::kV100},
    {"a2", Accumulation::kA100},   {"a100", Accumulation::kA100},   {"ada", Accumulation::kAda},
    {"l40s", Accumulation::kAda},  {"h100", Accumulation::kH100},   {"h200", Accumulation::kH100},
    {"b200", Accumulation::kB200}};

}  // namespace

MatmulSettings matmul_settings() { return the_settings; }

MatmulNumerics matmul_numerics() {
  const MatmulSettings s = matmul_settings();
  return {s.accumulation, s.allow_tf32 ? s.tf32_rounding : Tf32::kOff};
}

MatmulNumerics conv_numerics(DeviceType device) {
  const MatmulSettings s = matmul_settings();
  const bool has_units = device == DeviceType::cuda || s.allow_tf32 || has_tf32(s.accumulation);
  return {s.accumulation, s.conv_allow_tf32 && has_units ? s.tf32_rounding : Tf32::kOff};
}

MatmulScope::MatmulScope(const MatmulSettings& settings) : ScopedValue(the_settings, settings) {
  WEFT_CHECK(settings.tf32_rounding != Tf32::kOff,
             "MatmulScope: tf32_rounding must be truncate or nearest; allow_tf32 turns TF32 off");
}

std::string_view name(Accumulation accumulation) {
  constexpr std::string_view kFirst[] = {"ieee", "exact", "v100", "a100", "ada", "h100", "b200"};
  return kFirst[static_cast<int>(accumulation)];
}

std::string to_string(const MatmulNumerics& numerics) {
  constexpr std::string_view kTf32[] = {"", " tf32", " tf32 nearest"};
  return fmt::format("{}{}", name(numerics.accumulation), kTf32[static_cast<int>(numerics.tf32)]);
}

Accumulation parse_accumulation(std::string_view text) {
  for (const auto& [name, accumulation] : kNames) {
    if (name == text) return accumulation;
  }
  WEFT_FAIL("matmul-numerics: \"{}\" is not one of {}{}", text,
            fmt::join(accumulation_names(), ", "), io::did_you_mean(text, accumulation_names()));
}

const std::vector<std::string>& accumulation_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& entry : kNames) list.emplace_back(entry.first);
    return list;
  }();
  return names;
}

}  // namespace weft::kernels
