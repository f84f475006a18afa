// Products as a GPU's tensor cores form them (numerics/tensor_core.h), with a kernel's epilogue in
// f32 after them: scale, bias, old C, one rounding to C's dtype.
#include "kernels/gemm/gemm_batch.h"
#include "numerics/tensor_core.h"

namespace weft::kernels {
namespace {

numerics::TensorCoreOperand operand(const Matrix& m) {
  return {m.data, m.dtype, m.row_stride, m.col_stride};
}

}  // namespace

void gemm_cpu_tensor_core(const GemmProblem& problem) {
  const DType dtype = problem.dtype();
  numerics::TensorCoreModel model = numerics::tensor_core_model(
      name(problem.numerics.accumulation), dtype == DType::f32 ? DType::tf32 : dtype);
  // Where one operand is e4m3 and the other e5m2: f16 holds both.
  if (problem.b.dtype() != dtype) model.input = DType::f16;
  // fp8, but for the GPUs whose fp8 sums have f32's precision anyway: those that add c last.
  const bool promotes = itemsize(dtype) == 1 && model.split_block == 0;
  // The model truncates by itself.
  const Tf32 rounding = problem.numerics.tf32 == Tf32::kNearest ? Tf32::kNearest : Tf32::kOff;
  const GemmProblem p = with_tf32_operands(problem, rounding);
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
                                       .promotion_interval = promotes ? kFp8PromotionInterval : 0});
    if (one.scale != 1) {
      for (int64_t j = 0; j < m * n; ++j) product.data<float>()[j] *= one.scale;
    }
    add_bias_matrix(dense_matrix(DType::f32, product.raw(), m, n), one.bias, one.accumulate, one.c);
  });
}

}  // namespace weft::kernels
