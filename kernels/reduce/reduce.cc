#include "kernels/reduce/reduce.h"

namespace weft::kernels {
namespace {

bool reduce_is_arithmetic(const ReduceProblem& p) {
  return p.reduction == Reduction::kSum || p.reduction == Reduction::kMean ||
         p.reduction == Reduction::kVar || p.reduction == Reduction::kSumSquares ||
         (selects(p.reduction) && !gives_place(p.reduction));
}

}  // namespace

#define WEFT_OP reduce
#define WEFT_PROBLEM ReduceProblem
#include "kernels/op_list_inl.h"

std::string_view name(Reduction reduction) {
  static constexpr std::string_view kNames[] = {
      "sum", "mean", "prod", "var", "sum_squares", "max", "min", "argmax", "argmin", "any", "all"};
  return kNames[static_cast<size_t>(reduction)];
}

std::string ReduceProblem::describe() const {
  return fmt::format("{}({} to {})", name(reduction), x, y.shape());
}

}  // namespace weft::kernels
