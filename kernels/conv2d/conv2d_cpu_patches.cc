// Patch embedding: the windows tile the image, so a copy turns it into a matrix of patches
// [N P Q, C R S], and each pass is one GEMM with the weights [K, C R S]. The copies touch each
// element once; the GEMM, K multiply-adds an element, is the limiter.
#include "core/view.h"
#include "kernels/conv2d/conv2d_shared.h"
#include "kernels/copy/copy.h"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

/// The covered part of an image as [N, P, Q, C, R, S], a view.
Tensor patches_of(const Tensor& image, const Conv2dSizes& s) {
  const Strides& strides = image.strides();
  return Tensor::view_of(
      image.storage(), {s.N, s.P, s.Q, s.C, s.R, s.S},
      {strides[0], strides[2] * s.R, strides[3] * s.S, strides[1], strides[2], strides[3]},
      image.offset(), image.dtype());
}

/// [N, K, P, Q] as [N, P, Q, K], a view.
Tensor channels_last(const Tensor& t) { return view::permute(t, {0, 2, 3, 1}); }

}  // namespace

bool conv2d_is_patch_embedding(const Conv2dProblem& p) {
  const Shape& filter = p.filter().shape();
  const Shape& image = p.image().shape();
  const Shape& result = p.result().shape();
  for (int d = 0; d < 2; ++d) {
    if (p.stride[d] != filter[2 + d] || p.padding[d] != 0 || p.dilation[d] != 1) return false;
    if (result[2 + d] * filter[2 + d] > image[2 + d]) return false;
  }
  return p.groups == 1 && filter[2] * filter[3] > 1;
}

void conv2d_as_patches(const Conv2dProblem& p) {
  const Conv2dSizes s(p);
  const int64_t rows = s.N * s.P * s.Q;
  const auto as_matrix = [&](const Tensor& t, int64_t columns) {
    return view::reshape(t, {rows, columns});
  };
  const auto weights = [&] { return view::reshape(contiguous(p.w), {s.K, s.patch()}); };
  const auto patches = [&] { return as_matrix(contiguous(patches_of(p.x, s)), s.patch()); };
  const auto dy = [&] { return as_matrix(contiguous(channels_last(p.dy)), s.K); };
  switch (p.pass()) {
    case Conv2dPass::kForward:
      write_through(channels_last(p.y), p.dtype(), [&](const Tensor& y) {
        gemm({.a = patches(),
              .b = view::transpose(weights(), 0, 1),
              .c = as_matrix(y, s.K),
              .bias = p.bias,
              .numerics = p.numerics});
      });
      return;
    case Conv2dPass::kDataGradient: {
      if (s.P * s.R < s.H || s.Q * s.S < s.W) {
        copy(
            {.x = view::expand(Tensor::zeros({}, p.dtype(), p.device()), p.dx.shape()), .y = p.dx});
      }
      write_through(patches_of(p.dx, s), p.dtype(), [&](const Tensor& dx) {
        gemm({.a = dy(), .b = weights(), .c = as_matrix(dx, s.patch()), .numerics = p.numerics});
      });
      return;
    }
    case Conv2dPass::kWeightGradient:
      write_through(p.dw, p.dw.dtype(), [&](const Tensor& dw) {
        gemm({.a = view::transpose(dy(), 0, 1),
              .b = patches(),
              .c = view::reshape(dw, {s.K, s.patch()}),
              .numerics = p.numerics});
      });
      return conv2d_bias_gradient(p);
  }
}

void conv2d_cpu_patches(const Conv2dProblem& p) { conv2d_as_patches(p); }

}  // namespace weft::kernels
