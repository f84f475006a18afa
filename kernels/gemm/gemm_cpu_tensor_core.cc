// Products as a GPU's tensor cores form them (numerics/tensor_core.h), with a kernel's epilogue in
// f32 after them: scale, bias, old C, one rounding to C's dtype.
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/tf32_operand.h"
#include "numerics/tensor_core.h"

namespace weft::kernels {
namespace {

numerics::TensorCoreModel model_of(const GemmProblem& p) {
  const std::string_view gpu = name(p.numerics.accumulation);
  numerics::TensorCoreModel model =
      numerics::tensor_core_model(gpu, p.dtype() == DType::f32 ? DType::tf32 : p.dtype());
  // Where one operand is e4m3 and the other e5m2: f16 holds both.
  if (p.a.dtype() != p.b.dtype()) model.input = DType::f16;
  return model;
}

/// fp8, but for the GPUs whose fp8 sums have f32's precision anyway: those that add c last.
bool needs_promotion(const GemmProblem& p, const numerics::TensorCoreModel& model) {
  return itemsize(p.dtype()) == 1 && model.split_block == 0;
}

numerics::TensorCoreOperand operand(const Matrix& m) {
  return {m.data, m.dtype, m.row_stride, m.col_stride};
}

}  // namespace

void gemm_cpu_tensor_core(const GemmProblem& problem) {
  GemmProblem p = problem;
  const numerics::TensorCoreModel model = model_of(p);
  const int64_t promotion_interval = needs_promotion(p, model) ? kFp8PromotionInterval : 0;
  if (p.numerics.tf32 == Tf32::kNearest) {
    p.a = tf32_operand(p.a, Tf32::kNearest);
    p.b = tf32_operand(p.b, Tf32::kNearest);
  }
  gemm_by_products(p, [&](const GemmProduct& one) {
    const int64_t m = one.c.rows, n = one.c.cols;
    const Tensor product = Tensor::empty({m, n}, DType::f32);
    numerics::tensor_core_gemm(model, {.m = m,
                                       .n = n,
                                       .k = one.a.cols,
                                       .a = operand(one.a),
                                       .b = operand(one.b),
                                       .d = product.data<float>(),
                                       .d_row_stride = n,
                                       .promotion_interval = promotion_interval});
    if (one.scale != 1) {
      for (int64_t j = 0; j < m * n; ++j) product.data<float>()[j] *= one.scale;
    }
    add_bias_matrix(dense_matrix(DType::f32, product.raw(), m, n), one.bias, one.accumulate, one.c);
  });
}

}  // namespace weft::kernels
