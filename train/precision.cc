#include "train/precision.h"

#include <fmt/ranges.h>

#include <utility>

#include "io/nearest.h"
#include "kernels/device/probe.h"

namespace weft::train {
namespace {

// Fabric's short forms; "bf16" is ours and its.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"16", "fp16"}, {"32", "fp32"}, {"64", "fp64"}};

kernels::MatmulSettings settings(const Precision& precision, kernels::Accumulation accumulation,
                                 kernels::Tf32 rounding) {
  kernels::MatmulSettings s = kernels::matmul_settings();
  s.accumulation = accumulation;
  s.allow_tf32 = precision.is_tf32();
  s.tf32_rounding = rounding;
  return s;
}

}  // namespace

const std::vector<Precision>& precisions() {
  static const std::vector<Precision> list = {
      {.name = "fp32", .fabric = "32-true"},
      {.name = "tf32", .products = DType::tf32},
      {.name = "bf16", .fabric = "bf16-mixed", .products = DType::bf16, .autocast = DType::bf16},
      {.name = "fp16", .fabric = "16-mixed", .products = DType::f16, .autocast = DType::f16},
      {.name = "bf16-true",
       .fabric = "bf16-true",
       .products = DType::bf16,
       .parameters = DType::bf16},
      {.name = "fp16-true", .fabric = "16-true", .products = DType::f16, .parameters = DType::f16},
      {.name = "fp64", .fabric = "64-true", .products = DType::f64, .parameters = DType::f64},
      {.name = "fp8",
       .fabric = "transformer-engine",
       .products = DType::f8e4m3,
       .autocast = DType::bf16},
  };
  return list;
}

const Precision& find_precision(std::string_view name) {
  for (const auto& [alias, full] : kAliases) {
    if (alias == name) name = full;
  }
  std::vector<std::string> others, all;
  for (const Precision& p : precisions()) {
    if (p.name == name || (!name.empty() && p.fabric == name)) return p;
    all.emplace_back(p.name);
    if (!p.fabric.empty() && p.fabric != p.name) others.emplace_back(p.fabric);
  }
  all.insert(all.end(), others.begin(), others.end());
  WEFT_FAIL("precision: \"{}\" is not one of {} (or {}){}", name, precision_names(),
            fmt::join(others, ", "), io::did_you_mean(name, all));
}

std::string precision_names() {
  std::vector<std::string_view> names;
  for (const Precision& precision : precisions()) names.push_back(precision.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

PrecisionScope::PrecisionScope(const Precision& precision, kernels::Accumulation accumulation,
                               Fp8Scaling* fp8, kernels::Tf32 rounding)
    : numerics_(settings(precision, accumulation, rounding)), autocast_(precision.autocast) {
  if (!precision.is_fp8()) return;
  WEFT_CHECK(fp8, "PrecisionScope: precision fp8 needs an Fp8Scaling");
  fp8_.emplace(*fp8);
}

Capabilities capabilities_of_compute_capability(std::string device, int capability) {
  return {.device = std::move(device),
          .tf32 = capability >= 80,
          .f16 = capability >= 70,
          .bf16 = capability >= 80,
          .fp8 = capability >= 89};
}

Capabilities capabilities_of(Device device) {
  if (device.type == DeviceType::cpu) return {.device = to_string(device)};
  const kernels::CudaDevices cuda = kernels::find_cuda_devices();
  for (const kernels::CudaDevice& d : cuda.devices) {
    if (d.index != device.index) continue;
    return capabilities_of_compute_capability(
        fmt::format("{} ({}, compute capability {}.{})", to_string(device), d.name,
                    d.compute_capability / 10, d.compute_capability % 10),
        d.compute_capability);
  }
  WEFT_FAIL("{}: there is no such device{}", to_string(device),
            cuda.reason.empty() ? "" : ": " + cuda.reason);
}

Capabilities capabilities_of(kernels::Accumulation accumulation) {
  using kernels::Accumulation;
  constexpr std::pair<Accumulation, int> kComputeCapabilities[] = {{Accumulation::kV100, 70},
                                                                   {Accumulation::kA100, 80},
                                                                   {Accumulation::kAda, 89},
                                                                   {Accumulation::kH100, 90},
                                                                   {Accumulation::kB200, 100}};
  const std::string device = fmt::format("--matmul-numerics {}", kernels::name(accumulation));
  for (const auto& [known, capability] : kComputeCapabilities) {
    if (known == accumulation) return capabilities_of_compute_capability(device, capability);
  }
  return {.device = device};
}

bool has(const Capabilities& device, const Precision& precision) {
  switch (precision.products) {
    case DType::tf32:
      return device.tf32;
    case DType::f16:
      return device.f16;
    case DType::bf16:
      return device.bf16;
    case DType::f8e4m3:
      return device.fp8;
    default:
      return true;
  }
}

void check_supported(const Precision& precision, const Capabilities& device) {
  if (has(device, precision)) return;
  const bool is_true = precision.parameters != DType::f32;
  std::vector<std::string_view> nearest;
  if (precision.is_fp8()) nearest = {"bf16", "fp16"};
  if (precision.products == DType::bf16) nearest = {is_true ? "fp16-true" : "fp16"};
  if (precision.products == DType::f16) nearest = {is_true ? "bf16-true" : "bf16"};
  nearest.push_back("fp32");
  for (std::string_view name : nearest) {
    if (!has(device, find_precision(name))) continue;
    WEFT_FAIL("precision: {} has no {} products; use --precision {}", device.device, precision.name,
              name);
  }
}

bool cpu_has_bf16_instructions() {
  return __builtin_cpu_supports("avx512bf16");  // AMX's, too, stand beside these
}

}  // namespace weft::train
