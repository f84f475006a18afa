// Products as a GPU's tensor cores form them (numerics/tensor_core.h), with a kernel's epilogue in
// f32 after them: scale, bias, old C, one rounding to C's dtype.
#include "core/parallel.h"
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
  if (gemm_is_empty(problem)) return;
  GemmProblem p = with_residual_in_c(problem);
  const numerics::TensorCoreModel model = model_of(p);
  if (p.numerics.tf32 == Tf32::nearest) {
    p.a = tf32_operand(p.a, Tf32::nearest);
    p.b = tf32_operand(p.b, Tf32::nearest);
  }
  const GemmBatch batch = gemm_batch(p);
  if (p.k() == 0) {
    gemm_without_products(p, batch);
    return gemm_epilogue(p, batch);
  }
  const Tensor bias = gemm_bias(p);
  const auto scale = static_cast<float>(p.scale);
  const bool to_aux = p.epilogue == Epilogue::gelu;
  const int64_t m = batch.c.rows, n = batch.c.cols, k = batch.a.cols;
  // Small products are dealt out to threads, large ones use all.
  parallel_for(
      batch.size(), m * n * k < (1 << 20) ? 1 : batch.size(), [&](int64_t begin, int64_t end) {
        const Tensor product = Tensor::empty({m, n}, DType::f32);
        for (int64_t i = begin; i < end; ++i) {
          numerics::tensor_core_gemm(
              model, {.m = m,
                      .n = n,
                      .k = k,
                      .a = operand(batch.a.shifted(batch.a_offsets[i])),
                      .b = operand(batch.b.shifted(batch.b_offsets[i])),
                      .d = product.data<float>(),
                      .d_row_stride = n,
                      .promotion_interval = needs_promotion(p, model) ? kFp8PromotionInterval : 0});
          if (scale != 1) {
            for (int64_t j = 0; j < m * n; ++j) product.data<float>()[j] *= scale;
          }
          add_bias_matrix(dense_matrix(DType::f32, product.raw(), m, n),
                          bias.defined() ? bias.raw() : nullptr, p.accumulate,
                          to_aux ? batch.aux.shifted(batch.aux_offsets[i])
                                 : batch.c.shifted(batch.c_offsets[i]));
        }
      });
  gemm_epilogue(p, batch);
}

}  // namespace weft::kernels
