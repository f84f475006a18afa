// The differentiable operations: what modules and users compute with.
//
// Each checks its arguments (throwing Error with its name, shapes and dtypes), calls one kernel,
// and records its gradient (autograd/tape.h). Results are new tensors but for the views, which
// share storage, and the in-place ops, whose names end in an underscore. Names and semantics are
// PyTorch's. Shapes broadcast as NumPy's do; mixed dtypes are promoted (core/dtype.h).
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace weft {
namespace ops {

// Creation; nothing is recorded. create.cc
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
Tensor full_like(const Tensor& x, double value);
Tensor zeros_like(const Tensor& x);
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor arange(int64_t begin, int64_t end, DType dtype = DType::i64);
/// `steps` numbers in equal distances, both ends among them.
Tensor linspace(double start, double end, int64_t steps, DType dtype = DType::f32,
                Device device = {});
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
Tensor remainder(const Tensor& a, const Tensor& b);  // of the division rounded down: b's sign
Tensor pow(const Tensor& a, const Tensor& b);
Tensor atan2(const Tensor& a, const Tensor& b);    // the angle of the point (b, a)
Tensor maximum(const Tensor& a, const Tensor& b);  // ties: half of the gradient to each
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);  // where the mask is true
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor exp2(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);
/// log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
Tensor hardswish(const Tensor& x);
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
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
Tensor trunc(const Tensor& x);
Tensor is_nan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
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
/// The elements (i, i + offset) of two dimensions, as the last dimension of a view.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Pieces of `size`; the last may be smaller.
Tensors split(const Tensor& x, int64_t size, int64_t dim);
Tensors chunk(const Tensor& x, int64_t pieces, int64_t dim);
Tensor cat(const Tensors& tensors, int64_t dim);
Tensor stack(const Tensors& tensors, int64_t dim);

// Rearranged copies. rearrange.cc
Tensor flip(const Tensor& x, const Shape& dims);
/// Elements moved on by `shifts` and around the end; without dims in row-major order.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims = {});
Tensor repeat(const Tensor& x, const Shape& repeats);  // a number for each dimension, or more
Tensor tile(const Tensor& x, const Shape& repeats);    // or fewer: the leading ones are 1
enum class Indexing { kIJ, kXY };  // kXY: the first tensor runs along the second dimension
/// Vectors as views of the grid that they span.
Tensors meshgrid(const Tensors& vectors, Indexing indexing = Indexing::kIJ);
/// Matrices with 0 above, or below, the diagonal that lies so far above the main one.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);
enum class Padding { kConstant, kReflect, kReplicate, kCircular };
/// Wider by pads = {before, after} of the last dimension, then those of the one before it, ...
/// Negative ones cut off, of constant padding.
Tensor pad(const Tensor& x, const std::vector<int64_t>& pads, Padding padding = Padding::kConstant,
           double value = 0);

// Reductions over dims (none: all). reduce.cc
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Ties share the gradient.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
Tensor std(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
/// (sum |x|^p)^(1/p); the largest |x| for infinity, the least for -infinity, how many are not 0 for
/// 0. Sums are in f32 or wider.
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor trace(const Tensor& x);                                              // of a matrix
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);  // bool
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);  // the first of equals
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
/// x summed over the dimensions in which `shape` was broadcast to x's: the gradient of
/// broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// Matrix products. matmul.cc, einsum.cc
Tensor matmul(const Tensor& a, const Tensor& b);  // vectors, matrices and batches, as PyTorch's
Tensor outer(const Tensor& a, const Tensor& b);   // of vectors
/// Products summed by Einstein's convention: einsum("bij,bjk->bik", {a, b}). Labels are letters, an
/// ellipsis stands for dimensions that broadcast; operands meet from left to right.
Tensor einsum(std::string_view equation, const Tensors& operands);
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
/// x / sqrt(mean(x^2) + eps) * weight over the last dimension; eps: the dtype's by default.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, std::optional<double> eps = {});
/// x [N, C, ...] normalised over the channels of each group and all that follows them; weight and
/// bias [C] may be undefined.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// x [N, C, ...] normalised over what follows the channels. Running statistics are updated as
/// batch_norm's, by the means over N, and take the place of the input's where those are not used.
Tensor instance_norm(const Tensor& x, Tensor running_mean = {}, Tensor running_var = {},
                     const Tensor& weight = {}, const Tensor& bias = {},
                     bool use_input_stats = true, double momentum = 0.1, double eps = 1e-5);
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

// Losses. loss.cc
enum class LossReduction { kMean, kSum, kNone, kBatchMean };  // kBatchMean: kl_div's sum / N
struct NllLossOptions {
  Tensor weight = {};  // of each class, [C]
  int64_t ignore_index = -100;
  LossReduction reduction = LossReduction::kMean;  // over the weights of the labels
};
/// -log_probabilities at the labels: [C], [N, C] or [N, C, ...] and i64 labels without the C.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels,
                const NllLossOptions& options = {});
/// target (log target - x) of a log probability x; of a log target: exp(target) (target - x).
Tensor kl_div(const Tensor& x, const Tensor& target, LossReduction reduction = LossReduction::kMean,
              bool log_target = false);
/// Half the square of x - target over beta, but |x - target| - beta / 2 from beta on.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target,
                      LossReduction reduction = LossReduction::kMean, double beta = 1);
/// a b / (max(|a|, eps) max(|b|, eps)) along dim.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int64_t dim = 1, double eps = 1e-8);

struct AttentionOptions {
  bool causal = false;
  double dropout = 0;           // of the attention weights; modules: in training
  std::optional<double> scale;  // default 1/sqrt(head dim)
  /// bool, broadcasting to [B, H, Tq, Tk]: whether the query sees the key; 0 for one that sees
  /// none.
  Tensor mask = {};
};
/// softmax(scale Q K^T) V; q, k, v [B, H, T, D], any strides with unit stride in D. Grouped heads:
/// k and v may have H / n heads, each of which serves n neighbouring heads of q. attention.cc
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
struct Conv1dOptions {
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};
/// x [N, C, L], weight [O, C/groups, K], bias [O] or undefined.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv1dOptions& options = {});
struct ConvTranspose2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;
  Size2d output_padding = 0;
  int64_t groups = 1;
  Size2d dilation = 1;
};
/// The gradient of conv2d as an op: x [N, C, H, W], weight [C, O/groups, Kh, Kw], bias [O] or
/// undefined; the result is (H - 1) stride - 2 padding + dilation (Kh - 1) + output_padding + 1
/// high.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});
struct Pool2dOptions {
  Size2d kernel = 2;
  Size2d stride = 2;
  Size2d padding = 0;
  bool count_include_pad = true;  // average pooling only
};
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
/// Means of size[0] x size[1] windows that cover the image.
Tensor adaptive_avg_pool2d(const Tensor& x, const Size2d& size);
enum class Interpolation { kNearest, kBilinear };
struct InterpolateOptions {
  std::optional<Size2d> size = {};  // or
  std::optional<std::array<double, 2>> scale_factor = {};
  Interpolation mode = Interpolation::kNearest;
  bool align_corners = false;  // bilinear: the corners of both images are the same points
};
/// Images x [N, C, H, W] resampled. interpolate.cc
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

// Lookup. index.cc
Tensor embedding(const Tensor& weight, const Tensor& indices);             // rows of weight [V, D]
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& indices);  // indices i64 [n]
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with source added at index along dim; equal indices are added in order of position.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

/// x[indices], as NumPy's: each of the first dimensions has integer indices, which broadcast with
/// the others' and may count from the back, or a mask of as many dimensions as it takes away, or is
/// kept whole, by an undefined tensor. The indices' dimensions take the place of the first one
/// indexed, or lead where kept dimensions lie between indexed ones.
Tensor index(const Tensor& x, const Tensors& indices);
/// x with values, which broadcast to index(x, indices), put there, or added. Of equal indices the
/// last one wins, or all are added in order.
Tensor index_put(const Tensor& x, const Tensors& indices, const Tensor& values,
                 bool accumulate = false);
Tensor nonzero(const Tensor& x);  // places of what is not 0: i64 [n, dims], in row-major order

// Order. A NaN counts as larger than any number; equals keep their order. sort.cc
/// {sorted, i64 places in x} along dim.
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// {the k largest or smallest, their places} along dim, in order.
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
/// {values in ascending order, each once, ...}: the place of each element of x among them if
/// wanted, how often each occurs if wanted. Each NaN differs from all others.
Tensors unique(const Tensor& x, bool return_inverse = false, bool return_counts = false);
/// Sums of all elements up to each along dim; of integers in i64.
Tensor cumsum(const Tensor& x, int64_t dim);

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
