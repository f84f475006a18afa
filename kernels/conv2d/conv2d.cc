#include "kernels/conv2d/conv2d.h"

#include "kernels/gemm/gemm.h"

namespace weft::kernels {

#define WEFT_OP conv2d
#define WEFT_PROBLEM Conv2dProblem
#include "kernels/op_list_inl.h"

bool conv2d_fits_cuda(const Conv2dProblem& p) {
  return gemm_is<GemmArithmetic::kIeee, GemmArithmetic::kTf32>(p);
}

bool conv2d_fits_cuda_patches(const Conv2dProblem& p) {
  return gemm_is<GemmArithmetic::kIeee>(p) && conv2d_is_patch_embedding(p);
}

std::string Conv2dProblem::tuning_key() const {
  return operand_key("x", x) + operand_key("w", w) + operand_key("bias", bias) +
         operand_key("y", y) + operand_key("dy", dy) + operand_key("dx", dx) +
         operand_key("dw", dw) + operand_key("dbias", dbias) +
         fmt::format("stride {} {}, padding {} {}, dilation {} {}, groups {}, {}", stride[0],
                     stride[1], padding[0], padding[1], dilation[0], dilation[1], groups,
                     to_string(numerics));
}

std::vector<Tensor> Conv2dProblem::written() const {
  if (pass() == Conv2dPass::kDataGradient) return {dx};
  if (pass() == Conv2dPass::kWeightGradient) return {dw, dbias};
  return {y};
}

std::string Conv2dProblem::describe() const {
  constexpr const char* kPasses[] = {"forward", "data gradient", "weight gradient"};
  return fmt::format(
      "conv2d({}, {}, filter {}, stride=[{}, {}], padding=[{}, {}], dilation=[{}, {}], groups={})",
      kPasses[static_cast<int>(pass())], image(), filter(), stride[0], stride[1], padding[0],
      padding[1], dilation[0], dilation[1], groups);
}

int64_t conv2d_output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

}  // namespace weft::kernels
