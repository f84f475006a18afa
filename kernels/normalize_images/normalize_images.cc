#include "kernels/normalize_images/normalize_images.h"

namespace weft::kernels {
namespace {

constexpr DTypeSet kImageTypes = {DType::f32, DType::f16, DType::bf16};

}  // namespace

#define WEFT_OP normalize_images
#define WEFT_PROBLEM NormalizeImagesProblem
#include "kernels/op_list_inl.h"

std::string NormalizeImagesProblem::describe() const {
  return fmt::format("normalize_images({}, {}{})", x, y.dtype(), mixes() ? ", mixed" : "");
}

}  // namespace weft::kernels
