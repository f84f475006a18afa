// The ways to accumulate a dot product that `weft numerics dot` and `gemm` compare, by name:
//
//   ieee       an f32 chain in ascending order, each addition rounded to nearest even
//   pairwise   f32, halves summed first, recursively
//   half       an f16 chain, rounded to nearest even
//   h100 ...   a GPU's tensor core with f32 results; h100:f16 with f16 results;
//              h100+128 adds its sums of 128 products to an f32 accumulator
//
// Each has a bound: gamma_n of Higham for the first three, numerics/tensor_core_bounds.h for GPUs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "numerics/tensor_core.h"

namespace weft::cli {

class AccumulationModel {
 public:
  /// Throws Error for an unknown name, and for a GPU that does not take the format.
  AccumulationModel(std::string name, DType format);

  const std::string& name() const { return name_; }
  float dot(std::span<const float> a, std::span<const float> b) const;
  /// Bound on the error of a sum of k products with magnitude = sum |a||b|; infinite where the
  /// theory gives none (k u >= 1).
  double bound(double k, double magnitude) const;
  const std::optional<numerics::TensorCoreModel>& tensor_core() const { return tensor_core_; }
  int promotion_interval() const { return promotion_interval_; }

 private:
  std::string name_;
  std::optional<numerics::TensorCoreModel> tensor_core_;
  int promotion_interval_ = 0;
};

/// ieee, pairwise, and of the GPUs that take the format one per arithmetic.
std::vector<std::string> default_models(DType format);

/// sum a b and sum |a||b|, exact but for one last rounding.
struct ExactDot {
  double value = 0, magnitude = 0;
};
ExactDot exact_dot(std::span<const float> a, std::span<const float> b);

}  // namespace weft::cli
