#include "kernels/cube/cube.h"

namespace weft::kernels {

#define WEFT_OP cube
#define WEFT_PROBLEM CubeProblem
#include "kernels/op_list_inl.h"

std::string CubeProblem::describe() const { return fmt::format("cube({})", x); }

}  // namespace weft::kernels
