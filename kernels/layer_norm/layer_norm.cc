#include "kernels/layer_norm/layer_norm.h"

namespace weft::kernels {

#define WEFT_OP layer_norm
#define WEFT_PROBLEM LayerNormProblem
#include "kernels/op_list_inl.h"

std::string LayerNormProblem::tuning_key() const {
  return operand_key("x", x) + operand_key("residual", residual) + operand_key("gamma", gamma) +
         operand_key("beta", beta) + operand_key("sum", sum) + operand_key("y", y) +
         operand_key("mean", mean) + operand_key("dy", dy) + operand_key("ds", ds) +
         operand_key("dx", dx) + operand_key("dresidual", dresidual) +
         operand_key("dgamma", dgamma) + operand_key("dbeta", dbeta);
}

std::vector<Tensor> LayerNormProblem::written() const {
  if (backward()) return {dx, dresidual, dgamma, dbeta};
  return {sum, y, mean, rstd};
}

std::string LayerNormProblem::describe() const {
  return fmt::format("layer_norm({}, residual={}, affine={}, backward={})", x, residual.defined(),
                     gamma.defined(), backward());
}

}  // namespace weft::kernels
