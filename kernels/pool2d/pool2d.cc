#include "kernels/pool2d/pool2d.h"

#include <cstdint>

namespace weft::kernels {

#define WEFT_OP pool2d
#define WEFT_PROBLEM Pool2dProblem
#define WEFT_LIST "kernels/pool2d/pool2d.inc"
#include "kernels/op_list_inl.h"

void pool2d(const Pool2dProblem& p) {
  const int64_t pixels = p.image().shape()[2] * p.image().shape()[3];
  WEFT_CHECK(!p.indices.defined() || pixels <= INT32_MAX,
             "{}: places of maxima are i32: expected planes of fewer than 2^31 pixels",
             p.describe());
  dispatch(pool2d_op(), p);
}

std::string Pool2dProblem::describe() const {
  return fmt::format(
      "pool2d({}, {}, kernel=[{}, {}], stride=[{}, {}], padding=[{}, {}], dilation=[{}, {}], "
      "backward={})",
      kind == PoolKind::kMax ? "max" : "average", image(), kernel[0], kernel[1], stride[0],
      stride[1], padding[0], padding[1], dilation[0], dilation[1], backward());
}

int64_t pool2d_output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation, bool ceil_mode) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  if (!ceil_mode) return room < 0 ? 0 : room / stride + 1;
  if (room <= -stride) return 0;
  const int64_t windows = (room + stride - 1) / stride + 1;
  return (windows - 1) * stride >= size + padding ? windows - 1 : windows;
}

}  // namespace weft::kernels
