#include "kernels/fill/fill.h"

namespace weft::kernels {

#define WEFT_OP fill
#define WEFT_PROBLEM FillProblem
#include "kernels/op_list_inl.h"

std::string FillProblem::describe() const { return fmt::format("fill({}, {})", y, value); }

}  // namespace weft::kernels
