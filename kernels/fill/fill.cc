#include "kernels/fill/fill.h"

namespace weft::kernels {

#define WEFT_OP fill
#define WEFT_PROBLEM FillProblem
#define WEFT_LIST "kernels/fill/fill.inc"
#include "kernels/op_list_inl.h"

void fill(const FillProblem& problem) { dispatch(fill_op(), problem); }

std::string FillProblem::describe() const { return fmt::format("fill({}, {})", y, value); }

}  // namespace weft::kernels
