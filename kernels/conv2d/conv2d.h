// Two-dimensional cross-correlation and its gradients.
//
//   forward:          y[n,k,p,q] = bias[k] + sum over c,r,s of
//                         x[n, g C/G + c, p u - pad + r d, q u' - pad' + s d'] w[k,c,r,s]
//   data gradient:    dx[n,c,h,w] = the transposed map applied to dy
//   weight gradient:  dw[k,c,r,s] = sum over n,p,q of dy[n,k,p,q] x[...]; dbias[k] = sum of dy[n,k]
//
// x, dx: [N, C, H, W]; w, dw: [K, C/G, R, S]; y, dy: [N, K, P, Q]; bias, dbias: [K]; g is the group
// of k. Elements of x outside the image count as zero. P and Q are those of y, so that the padding
// below and to the right is whatever y needs; conv2d_output_size() is the symmetric one.
//
// All tensors have one dtype (f64 f32 f16 bf16), but that bias, dw and dbias may be f32 beside f16
// and bf16 ones. Any strides; outputs are assigned (=). A y that lies as [N, P, Q, K], or a dy that
// does, spares a patch embedding a copy; elsewhere contiguous tensors do. Sums are in f32 (f64 for
// f64); matrix products, of an image or of a batch of patches at a time, are as `numerics` says
// (kernels/gemm/matmul_numerics.h). The pass is told by the output that is defined: y, dx or dw.
#pragma once

#include <array>

#include "kernels/gemm/matmul_numerics.h"
#include "kernels/op.h"

namespace weft::kernels {

enum class Conv2dPass { kForward, kDataGradient, kWeightGradient };

struct Conv2dProblem {
  Tensor x;      // forward and weight gradient
  Tensor w;      // forward and data gradient
  Tensor bias;   // forward; may be undefined
  Tensor y;      // the forward's output
  Tensor dy;     // data and weight gradient
  Tensor dx;     // the data gradient's output
  Tensor dw;     // the weight gradient's output
  Tensor dbias;  // beside dw, if wanted
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};  // rows above, columns to the left
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
  MatmulNumerics numerics = conv_numerics();

  Conv2dPass pass() const {
    return dx.defined()   ? Conv2dPass::kDataGradient
           : dw.defined() ? Conv2dPass::kWeightGradient
                          : Conv2dPass::kForward;
  }
  const Tensor& image() const { return dx.defined() ? dx : x; }   // [N, C, H, W]
  const Tensor& filter() const { return dw.defined() ? dw : w; }  // [K, C/G, R, S]
  const Tensor& result() const { return y.defined() ? y : dy; }   // [N, K, P, Q]

  DType dtype() const { return image().dtype(); }
  Device device() const { return image().device(); }
  std::string describe() const;

  // For autotuning (kernels/op.h).
  std::string tuning_key() const;
  std::vector<Tensor> written() const;
};

/// Windows that lie side by side and cover more than a point: kernel = stride, no padding.
bool conv2d_is_patch_embedding(const Conv2dProblem& problem);
/// No empty tensor, output sizes that follow from the padding, bf16 only where the CPU has it, and
/// not the gradient of an image of a few channels; ieee numerics.
bool conv2d_fits_onednn(const Conv2dProblem& problem);

/// The CUDA variants: ieee numerics or TF32; patches in ieee.
bool conv2d_fits_cuda(const Conv2dProblem& problem);
bool conv2d_fits_cuda_patches(const Conv2dProblem& problem);
/// cuDNN: ieee numerics, contiguous tensors of one dtype, biases too, the symmetric output size, no
/// empty tensor; and the library was found.
bool conv2d_fits_cudnn(const Conv2dProblem& problem);

WEFT_DECLARE_OP(conv2d, Conv2dProblem);

/// floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1; below 1 when the kernel is
/// larger than the padded image.
int64_t conv2d_output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation = 1);

}  // namespace weft::kernels
