#include "kernels/gemm/gemm.h"

#include <cstring>

#include "core/stream.h"
#include "kernels/gemm/gemm_small.h"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {

#define WEFT_OP gemm
#define WEFT_PROBLEM GemmProblem
#define WEFT_LIST "kernels/gemm/gemm.inc"
#include "kernels/op_list_inl.h"

GemmArithmetic gemm_arithmetic(DType operands, const MatmulNumerics& numerics) {
  if (operands == DType::f64) return GemmArithmetic::kIeee;
  const bool is_f32 = operands == DType::f32, is_tf32 = is_f32 && numerics.tf32 != Tf32::kOff;
  switch (numerics.accumulation) {
    case Accumulation::kIeee:
      if (itemsize(operands) == 1) return GemmArithmetic::kFp8;
      return is_tf32 ? GemmArithmetic::kTf32 : GemmArithmetic::kIeee;
    case Accumulation::kExact:
      return GemmArithmetic::kExact;
    default:
      return is_f32 && !is_tf32 ? GemmArithmetic::kIeee : GemmArithmetic::kTensorCore;
  }
}

bool finish_if_empty(const GemmProblem& problem) {
  if (problem.c.numel() > 0) return false;
  const Tensor& sums = problem.bias_gradient;
  if (!sums.defined() || sums.numel() == 0) return true;
  if (sums.device().type == DeviceType::cpu) {
    std::memset(sums.raw(), 0, sums.nbytes());
  } else {
    runtime::set_bytes(sums.device().index, sums.raw(), 0, sums.nbytes(),
                       current_stream_handle(sums.device()));
  }
  return true;
}

std::optional<int64_t> batch_stride(const Tensor& t) {
  std::optional<int64_t> stride, expected;
  for (int d = t.dim() - 3; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (expected && t.stride(d) != *expected) return std::nullopt;
    if (!stride) stride = t.stride(d);
    expected = t.stride(d) * t.size(d);
  }
  return stride.value_or(0);
}

ForcedTile& forced_wgmma_tile() {
  static thread_local ForcedTile tile;
  return tile;
}

void gemm(const GemmProblem& problem) { dispatch(gemm_op(), problem); }

constexpr const char* kEpilogues[] = {"none", "gelu", "dgelu"};

std::string GemmProblem::tuning_key() const {
  return operand_key("a", a) + operand_key("b", b) + operand_key("c", c) +
         operand_key("bias", bias) + operand_key("aux", aux) + operand_key("residual", residual) +
         operand_key("bias_gradient", bias_gradient) +
         fmt::format("{}{}, {}", kEpilogues[static_cast<int>(epilogue)],
                     accumulate ? " accumulate" : "", to_string(numerics));
}

std::vector<Tensor> GemmProblem::written() const {
  return {c, epilogue == Epilogue::kGelu ? aux : Tensor(), bias_gradient};
}

std::string GemmProblem::describe() const {
  return fmt::format("gemm({} x {} -> {}, bias={}, epilogue={}, accumulate={}{}{}{}{})", a, b, c,
                     bias.defined() ? name(bias.dtype()) : "none",
                     kEpilogues[static_cast<int>(epilogue)], accumulate,
                     residual.defined() ? ", residual" : "",
                     bias_gradient.defined() ? ", bias_gradient" : "",
                     numerics.accumulation == Accumulation::kIeee
                         ? ""
                         : fmt::format(", numerics={}", name(numerics.accumulation)),
                     numerics.tf32 == Tf32::kOff ? "" : ", tf32");
}

}  // namespace weft::kernels
