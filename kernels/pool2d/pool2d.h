// Max and average pooling over windows of the last two dimensions, and their gradients.
//
//   max:      y[n,c,p,q] = max over r,s of x[n,c, p u - pad + r d, q u' - pad' + s d']
//             dx[n,c,i] = sum of dy[n,c,o] over the windows o whose first maximum lies at i
//   average:  y[n,c,p,q] = sum over r,s of x[...] / count;  dx[n,c,i] = sum of dy[n,c,o] / count
//
// x, dx: [N, C, H, W]; y, dy, indices: [N, C, P, Q]. P and Q are those of y: floor or ceil is the
// caller's choice. Elements outside the image are skipped; every window must touch the image.
// count: the elements of the window inside the image (count_include_pad: inside the image and its
// padding, taken as equal on both sides), as in PyTorch. A NaN in a window is its maximum. Global
// pooling is a window of the image's size.
//
// dtypes f64 f32 f16 bf16; sums are in f32 (f64 for f64) and rounded once. x and dy may have any
// strides; y and dx are contiguous and assigned (=). Additions to dx are in the order of increasing
// output position.
#pragma once

#include <array>

#include "kernels/op.h"

namespace weft::kernels {

enum class PoolKind { kMax, kAverage };

struct Pool2dProblem {
  PoolKind kind = PoolKind::kMax;
  Tensor x;   // forward: the input
  Tensor y;   // forward: the output
  Tensor dy;  // backward: the input
  Tensor dx;  // backward: the output
  /// i32 [N, C, P, Q], max only: the position h W + w of the first maximum. Forward: an output, if
  /// defined; backward: an input. Contiguous.
  Tensor indices;
  std::array<int64_t, 2> kernel = {1, 1};
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};  // rows above, columns to the left
  std::array<int64_t, 2> dilation = {1, 1};
  bool count_include_pad = true;  // average only; PyTorch's default

  bool backward() const { return dx.defined(); }
  const Tensor& image() const { return backward() ? dx : x; }
  const Tensor& result() const { return backward() ? dy : y; }
  DType dtype() const { return image().dtype(); }
  Device device() const { return image().device(); }
  std::string describe() const;
};

WEFT_DECLARE_OP(pool2d, Pool2dProblem);

/// floor (or ceil) of (size + 2 padding - dilation (kernel - 1) - 1) / stride, plus 1, or 0. As in
/// PyTorch ceil_mode leaves out a last window that would start in the padding behind the image, and
/// takes one that is larger than the padded image, by less than the stride.
int64_t pool2d_output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation = 1, bool ceil_mode = false);

}  // namespace weft::kernels
