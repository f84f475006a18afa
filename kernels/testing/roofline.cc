#include "kernels/testing/roofline.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace weft::kernels {

double Roofline::peak(DType dtype) const {
  const auto found = matmul_tflop_s.find(std::string(weft::name(dtype)));
  return found != matmul_tflop_s.end() ? found->second : matmul_tflop_s.at("f32");
}

double Roofline::seconds(double flops, double bytes, DType dtype) const {
  return std::max(flops * 1e-12 / peak(dtype), bytes * 1e-9 / copy_gb_s);
}

bool Roofline::is_memory_bound(double flops, double bytes, DType dtype) const {
  return bytes * 1e-9 / copy_gb_s > flops * 1e-12 / peak(dtype);
}

Roofline read_roofline(const std::string& path) {
  std::ifstream file(path);
  WEFT_CHECK(file.good(), "{}: cannot read the roofline", path);
  Roofline roofline;
  try {
    const nlohmann::json json = nlohmann::json::parse(file).at("roofline");
    json.at("device").get_to(roofline.device);
    json.at("name").get_to(roofline.name);
    json.at("copy_gb_s").get_to(roofline.copy_gb_s);
    json.at("matmul_tflop_s").get_to(roofline.matmul_tflop_s);
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: not the roofline program's output: {}", path, error.what());
  }
  const bool is_positive = std::ranges::all_of(roofline.matmul_tflop_s,
                                               [](const auto& peak) { return peak.second > 0; });
  WEFT_CHECK(roofline.copy_gb_s > 0 && roofline.matmul_tflop_s.contains("f32") && is_positive,
             "{}: not the roofline program's output: rates must be positive, f32's among them",
             path);
  return roofline;
}

}  // namespace weft::kernels
