#include "kernels/cube/cube.h"

namespace weft::kernels {

#define WEFT_OP cube
#define WEFT_PROBLEM CubeProblem
#define WEFT_LIST "kernels/cube/cube.inc"
#include "kernels/op_list_inl.h"

void cube(const CubeProblem& problem) { dispatch(cube_op(), problem); }

std::string CubeProblem::describe() const { return fmt::format("cube({})", x); }

}  // namespace weft::kernels
