#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::kernels {

#define WEFT_OP cross_entropy
#define WEFT_PROBLEM CrossEntropyProblem
#include "kernels/op_list_inl.h"

std::string CrossEntropyProblem::describe() const {
  return fmt::format("cross_entropy({}, labels={}, label_smoothing={}, forward={}, backward={})",
                     logits, labels, label_smoothing, forward(), backward());
}

}  // namespace weft::kernels
