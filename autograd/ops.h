// The differentiable operations: what modules and users compute with.
//
// Each checks its arguments (throwing Error with its name, shapes and dtypes), calls one kernel,
// and records its gradient (autograd/tape.h). Results are new tensors but for the views, which
// share storage, and the in-place ops, whose names end in an underscore. Names and semantics are
// PyTorch's. Shapes broadcast as NumPy's do; mixed dtypes are promoted (core/dtype.h).
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "autograd/tape.h"

namespace weft {
namespace ops {

// Creation; nothing is recorded. create.cc
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
Tensor full_like(const Tensor& x, double value);
Tensor zeros_like(const Tensor& x);
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor arange(int64_t begin, int64_t end, DType dtype = DType::i64);
Tensor eye(int64_t n, DType dtype = DType::f32);
Tensor one_hot(const Tensor& indices, int64_t classes, DType dtype = DType::f32);
// Drawn from the generator of autograd/random.h.
Tensor rand(const Shape& shape, DType dtype = DType::f32);
Tensor randn(const Shape& shape, DType dtype = DType::f32);

// Elementwise, broadcasting. elementwise.cc
Tensor add(const Tensor& a, const Tensor& b, double alpha = 1);  // a + alpha b
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties: half of the gradient to each
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor silu(const Tensor& x);
enum class Gelu { kErf, kTanh };
Tensor gelu(const Tensor& x, Gelu form = Gelu::kErf);
Tensor clamp(const Tensor& x, double low, double high);
// Not differentiable: bool, or integer-valued, results.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
Tensor is_nan(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
// In place; the target keeps its dtype and shape.
Tensor& add_(Tensor& target, const Tensor& x, double alpha = 1);
Tensor& mul_(Tensor& target, const Tensor& x);
Tensor& fill_(Tensor& target, double value);
Tensor& zero_(Tensor& target);
Tensor& copy_(Tensor& target, const Tensor& x);

// Conversion. create.cc
Tensor cast(const Tensor& x, DType dtype);  // x itself when it has the dtype
Tensor to(const Tensor& x, Device device);
Tensor contiguous(const Tensor& x);  // x itself when it is contiguous
Tensor clone(const Tensor& x);       // always a new, contiguous tensor

// Views and shapes. view.cc
Tensor reshape(const Tensor& x, const Shape& shape);  // a view where strides allow, else a copy
Tensor view(const Tensor& x, const Shape& shape);     // never copies
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
Tensor permute(const Tensor& x, const Shape& order);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor unsqueeze(const Tensor& x, int64_t dim);
Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);
Tensor narrow(const Tensor& x, int64_t dim, int64_t begin, int64_t length);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// Pieces of `size`; the last may be smaller.
Tensors split(const Tensor& x, int64_t size, int64_t dim);
Tensors chunk(const Tensor& x, int64_t pieces, int64_t dim);
Tensor cat(const Tensors& tensors, int64_t dim);
Tensor stack(const Tensors& tensors, int64_t dim);

// Reductions over dims (none: all). reduce.cc
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Ties share the gradient.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);  // the first of equals
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
/// x summed over the dimensions in which `shape` was broadcast to x's: the gradient of
/// broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// Matrix products. matmul.cc
Tensor matmul(const Tensor& a, const Tensor& b);  // vectors, matrices and batches, as PyTorch's
/// x W^T + b: x [..., in], W [out, in], b [out] or undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// gelu(x W^T + b) in one pass over the result, keeping the pre-activation for backward.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// linear(linear_gelu(x, weight_1, bias_1), weight_2, bias_2), whose gradient takes GELU's
/// derivative and, on a device, the first bias's gradient on the way out of one product.
Tensor mlp(const Tensor& x, const Tensor& weight_1, const Tensor& bias_1, const Tensor& weight_2,
           const Tensor& bias_2);

// Normalisation and probabilities.
Tensor softmax(const Tensor& x, int64_t dim);  // softmax.cc
Tensor log_softmax(const Tensor& x, int64_t dim);
/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension; weight and bias may be
/// undefined. norm.cc
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
/// {s, layer_norm(s)} with s = x + residual, in one pass.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& weight, const Tensor& bias,
                                         double eps = 1e-5);
/// x [N, C, ...]. Training: statistics of the batch, running ones updated in place as
/// running = (1 - momentum) running + momentum batch (unbiased variance). norm.cc
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, bool training, double momentum = 0.1, double eps = 1e-5);
struct CrossEntropyOptions {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
};
/// Mean cross-entropy of logits [N, C] against labels: i64 [N], or probabilities [N, C]. Rows with
/// ignore_index count neither in the sum nor in the mean. softmax.cc
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

struct AttentionOptions {
  bool causal = false;
  double dropout = 0;           // of the attention weights; modules: in training
  std::optional<double> scale;  // default 1/sqrt(head dim)
};
/// softmax(scale Q K^T) V; q, k, v [B, H, T, D], any strides with unit stride in D. attention.cc
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

/// The same on the fused projection of one input: qkv [B, T, 3 * heads * D], its last dimension
/// ordered as (q|k|v, head, D); result [B, T, heads * D]. No copies in either direction.
Tensor self_attention(const Tensor& qkv, int64_t heads, const AttentionOptions& options = {});

// Images. conv.cc
/// A height and a width; one number stands for both.
struct Size2d : std::array<int64_t, 2> {
  Size2d(int64_t both) : Size2d(both, both) {}
  Size2d(int64_t height, int64_t width) : Size2d(std::array{height, width}) {}
  Size2d(const std::array<int64_t, 2>& size) : std::array<int64_t, 2>(size) {}
};
struct Conv2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;
  Size2d dilation = 1;
  int64_t groups = 1;
};
/// x [N, C, H, W], weight [O, C/groups, Kh, Kw], bias [O] or undefined.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
struct Pool2dOptions {
  Size2d kernel = 2;
  Size2d stride = 2;
  Size2d padding = 0;
  bool count_include_pad = true;  // average pooling only
};
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});

// Lookup. index.cc
Tensor embedding(const Tensor& weight, const Tensor& indices);             // rows of weight [V, D]
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& indices);  // indices i64 [n]
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with source added at index along dim; equal indices are added in order of position.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

/// Zeroes elements with probability p and scales the rest by 1/(1-p). The mask is Philox noise from
/// the generator of autograd/random.h and is drawn again, not stored, for backward. dropout.cc
Tensor dropout(const Tensor& x, double p, bool training = true);

}  // namespace ops

// add, sub, mul, div. Operands are taken by value, so that a result may take the memory of one that
// nobody else has: of a temporary, or of what was moved here. Not while gradients are recorded.
Tensor operator+(Tensor a, Tensor b);
Tensor operator-(Tensor a, Tensor b);
Tensor operator*(Tensor a, Tensor b);
Tensor operator/(Tensor a, Tensor b);
inline Tensor operator-(const Tensor& x) { return ops::neg(x); }
// A number takes the tensor's dtype and device (f32 beside integers).
Tensor operator+(Tensor a, double b);
Tensor operator+(double a, Tensor b);
Tensor operator-(Tensor a, double b);
Tensor operator-(double a, Tensor b);
Tensor operator*(Tensor a, double b);
Tensor operator*(double a, Tensor b);
Tensor operator/(Tensor a, double b);
Tensor operator/(double a, Tensor b);

}  // namespace weft
