#include "kernels/sort/sort.h"

namespace weft::kernels {

#define WEFT_OP sort
#define WEFT_PROBLEM SortProblem
#include "kernels/op_list_inl.h"

std::string SortProblem::describe() const {
  return fmt::format("sort({}, axis={}, {} of them, {})", x, axis, values.shape()[axis],
                     descending ? "descending" : "ascending");
}

}  // namespace weft::kernels
