#include "cli/numerics/models.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "numerics/error_bounds.h"
#include "numerics/exact_sum.h"
#include "numerics/tensor_core_bounds.h"

namespace weft::cli {
namespace {

float pairwise_sum(std::span<const float> a, std::span<const float> b) {
  if (a.size() == 1) return a[0] * b[0];
  const size_t half = a.size() / 2;
  return pairwise_sum(a.first(half), b.first(half)) +
         pairwise_sum(a.subspan(half), b.subspan(half));
}

}  // namespace

AccumulationModel::AccumulationModel(std::string name, DType format) : name_(std::move(name)) {
  if (name_ == "ieee" || name_ == "pairwise" || name_ == "half") return;
  std::string gpu = name_;
  DType output = DType::f32;
  if (const size_t plus = gpu.find('+'); plus != std::string::npos) {
    const char* const end = gpu.data() + gpu.size();
    const auto [stop, error] = std::from_chars(gpu.data() + plus + 1, end, promotion_interval_);
    WEFT_CHECK(error == std::errc() && stop == end && promotion_interval_ > 0,
               "model \"{}\": expected a number of products after +", name_);
    gpu.resize(plus);
  } else if (gpu.ends_with(":f16")) {
    gpu.resize(gpu.size() - 4);
    output = DType::f16;
  }
  WEFT_CHECK(std::ranges::count(numerics::tensor_core_gpus(), gpu) > 0,
             "unknown model \"{}\": expected ieee, pairwise, half, or one of v100 a2 a100 ada l40s "
             "h100 h200 b200, with :f16 or +N behind it",
             name_);
  tensor_core_ = numerics::tensor_core_model(gpu, format, output);
  const int block = std::max(tensor_core_->step.terms, tensor_core_->split_block);
  WEFT_CHECK(promotion_interval_ % block == 0 &&
                 (promotion_interval_ == 0 || tensor_core_->split_block == 0),
             "model \"{}\": expected promotion after a multiple of {} products{}", name_, block,
             tensor_core_->split_block == 0 ? "" : ", and this GPU adds to c itself");
}

float AccumulationModel::dot(std::span<const float> a, std::span<const float> b) const {
  if (a.empty()) return 0;
  if (name_ == "ieee") return std::inner_product(a.begin(), a.end(), b.begin(), 0.0f);
  if (name_ == "pairwise") return pairwise_sum(a, b);
  if (name_ == "half") {
    f16 sum;
    for (size_t i = 0; i < a.size(); ++i) {
      sum = from_double<f16>(to_double(sum) + static_cast<double>(a[i]) * b[i]);
    }
    return static_cast<float>(sum);
  }
  if (promotion_interval_ == 0) return numerics::tensor_core_dot(*tensor_core_, a, b, 0);
  float sum = 0;
  for (size_t i = 0; i < a.size(); i += promotion_interval_) {
    const size_t n = std::min<size_t>(promotion_interval_, a.size() - i);
    sum += numerics::tensor_core_dot(*tensor_core_, a.subspan(i, n), b.subspan(i, n), 0);
  }
  return sum;
}

double AccumulationModel::bound(double k, double magnitude) const {
  if (tensor_core_) {
    return numerics::tensor_core_dot_bound(*tensor_core_, k, magnitude, promotion_interval_);
  }
  const double u = name_ == "half" ? unit_roundoff(DType::f16) : unit_roundoff(DType::f32);
  // Products of narrow formats are exact in f32: only the additions round.
  const double n = name_ == "pairwise" ? std::ceil(std::log2(k)) : name_ == "half" ? k : k - 1;
  if (n * u >= 1) return HUGE_VAL;
  const double smallest = name_ == "half" ? numerics::smallest_subnormal(DType::f16) : 0;
  return numerics::sum_bound(n, u, magnitude) + n * smallest;
}

std::vector<std::string> default_models(DType format) {
  std::vector<std::string> names = {"ieee", "pairwise"};
  std::vector<numerics::TensorCoreModel> seen;
  for (const char* gpu : {"v100", "a100", "ada", "h100", "b200"}) {
    try {
      const numerics::TensorCoreModel model = numerics::tensor_core_model(gpu, format);
      const auto is_same = [&](const numerics::TensorCoreModel& other) {
        return other.step == model.step && other.split_block == model.split_block;
      };
      if (std::ranges::any_of(seen, is_same)) continue;  // Ada computes bf16 as A100 does
      seen.push_back(model);
      names.push_back(gpu);
    } catch (const Error&) {
      continue;  // it does not take the format
    }
  }
  if (format == DType::f8e4m3 || format == DType::f8e5m2) names.push_back("h100+128");
  return names;
}

ExactDot exact_dot(std::span<const float> a, std::span<const float> b) {
  numerics::ExactSum value, magnitude;
  for (size_t i = 0; i < a.size(); ++i) {
    const double product = static_cast<double>(a[i]) * b[i];
    value.add(product);
    magnitude.add(std::abs(product));
  }
  return {value.value(), magnitude.value()};
}

}  // namespace weft::cli
