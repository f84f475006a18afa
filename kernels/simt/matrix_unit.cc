#include "kernels/simt/matrix_unit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/simt/watch.h"
#include "numerics/tensor_core.h"

namespace weft::simt {
namespace {

/// How a GPU, or an H100 in its place, multiplies operands of these types.
numerics::TensorCoreModel model_of(std::string_view gpu, Instruction instruction,
                                   OperandTypes types) {
  const DType input = info(types.a).dtype;
  const bool has_it =
      instruction == Instruction::kMma && !gpu.empty() && numerics::tensor_core_takes(gpu, input);
  numerics::TensorCoreModel model = numerics::tensor_core_model(has_it ? gpu : "h100", input);
  if (types.a != types.b) model.input = DType::f16;  // of two fp8 formats: f16 holds both
  return model;
}

enum class Row : uint8_t { kZero, kFinite, kSpecial };

/// What each row holds at most.
std::vector<Row> kinds_of_rows(const float* x, int rows, int k) {
  std::vector<Row> kinds(rows, Row::kZero);
  for (int i = 0; i < rows * k; ++i) {
    Row& kind = kinds[i / k];
    if (x[i] != 0) kind = std::max(kind, std::isfinite(x[i]) ? Row::kFinite : Row::kSpecial);
  }
  return kinds;
}

/// Each sum by the model but those of a tile's tail, which are zero.
void multiply_exactly(const numerics::TensorCoreModel& model, int m, int n, int k, const float* a,
                      const float* b, float* d) {
  const auto terms = static_cast<size_t>(k);
  const std::vector<Row> kinds_a = kinds_of_rows(a, m, k), kinds_b = kinds_of_rows(b, n, k);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float& sum = d[i * n + j];
      const auto [least, most] = std::minmax(kinds_a[i], kinds_b[j]);
      if (sum == 0 && least == Row::kZero && most != Row::kSpecial) {
        sum = 0;
      } else {
        sum = numerics::tensor_core_dot(model, {a + i * k, terms}, {b + j * k, terms}, sum);
      }
    }
  }
}

}  // namespace

void multiply(Instruction instruction, OperandTypes types, int m, int n, int k, const float* a,
              const float* b, float* d) {
  const std::string_view gpu = state().options.tensor_core;
  if (!gpu.empty() || info(types.a).bytes == 1) {
    return multiply_exactly(model_of(gpu, instruction, types), m, n, k, a, b, d);
  }
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      const float* x = a + i * k;
      const float* y = b + j * k;
      float& sum = d[i * n + j];
      float parts[4] = {};
      for (int l = 0; l < k; l += 4) {
        for (int p = 0; p < 4; ++p) parts[p] += x[l + p] * y[l + p];
      }
      sum += (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }
  }
}

}  // namespace weft::simt
