// The differentiable operations: what modules and users compute with.
//
// Each checks its arguments (throwing Error with its name, shapes and dtypes), calls one kernel,
// and records its gradient (autograd/tape.h). Results are new tensors but for the views, which
// share storage, and the in-place ops, whose names end in an underscore. Names and semantics are
// PyTorch's. Shapes broadcast as NumPy's do; mixed dtypes are promoted (core/dtype.h).
//
// Python's docstrings are made of the comments (python/docstrings.py): what stands above or beside
// a declaration, and then what heads its section.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace weft {
namespace ops {

// Creation: nothing is recorded. create.cc
/// All elements are `value`.
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
Tensor full_like(const Tensor& x, double value);
/// Of x's shape, dtype and device.
Tensor zeros_like(const Tensor& x);
/// All elements are 1.
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
/// begin, begin + 1, ... below end.
Tensor arange(int64_t begin, int64_t end, DType dtype = DType::i64);
/// `steps` numbers in equal distances, both ends among them.
Tensor linspace(double start, double end, int64_t steps, DType dtype = DType::f32,
                Device device = {});
/// The identity matrix [n, n].
Tensor eye(int64_t n, DType dtype = DType::f32);
/// indices [...] to [..., classes]: 1 at the index, else 0. Error for floating indices.
Tensor one_hot(const Tensor& indices, int64_t classes, DType dtype = DType::f32);
/// Uniform in [0, 1), from the generator of autograd/random.h.
Tensor rand(const Shape& shape, DType dtype = DType::f32);
/// Normal, of mean 0 and variance 1, from the generator of autograd/random.h.
Tensor randn(const Shape& shape, DType dtype = DType::f32);

// Elementwise. Shapes broadcast as NumPy's, mixed dtypes are promoted. Error where shapes do not
// broadcast or devices differ, and for integers where the function is one of reals. elementwise.cc
Tensor add(const Tensor& a, const Tensor& b, double alpha = 1);  // a + alpha b
Tensor sub(const Tensor& a, const Tensor& b);                    // a - b
Tensor mul(const Tensor& a, const Tensor& b);                    // a b
Tensor div(const Tensor& a, const Tensor& b);                    // a / b
Tensor remainder(const Tensor& a, const Tensor& b);  // of the division rounded down: b's sign
Tensor pow(const Tensor& a, const Tensor& b);        // a to the power of b
Tensor atan2(const Tensor& a, const Tensor& b);      // the angle of the point (b, a)
/// Ties: half of the gradient to each.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// a where the condition, a bool tensor, is true, else b.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// x with `value` where the bool mask, which broadcasts to x, is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// A number beside a tensor leaves it its floating dtype, and is not rounded to 16 bits itself.
// `result` is that dtype, to which the arithmetic rounds once; without it dtypes are promoted.
Tensor add(const Tensor& a, const Tensor& b, double alpha, std::optional<DType> result);
Tensor sub(const Tensor& a, const Tensor& b, std::optional<DType> result);
Tensor mul(const Tensor& a, const Tensor& b, std::optional<DType> result);
Tensor div(const Tensor& a, const Tensor& b, std::optional<DType> result);
Tensor remainder(const Tensor& a, const Tensor& b, std::optional<DType> result);
Tensor pow(const Tensor& a, const Tensor& b, std::optional<DType> result);
Tensor floor_divide(const Tensor& a, const Tensor& b, std::optional<DType> result);

Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor exp2(const Tensor& x);   // 2 to the power of x
Tensor expm1(const Tensor& x);  // exp(x) - 1
Tensor log(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
Tensor log1p(const Tensor& x);  // log(1 + x)
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);       // 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);  // 1 / x
Tensor square(const Tensor& x);      // x x
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
Tensor sigmoid(const Tensor& x);  // 1 / (1 + exp(-x))
Tensor erf(const Tensor& x);
Tensor relu(const Tensor& x);  // max(x, 0)
/// x where that is positive, else negative_slope x.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// x where that is positive, else alpha (exp(x) - 1).
Tensor elu(const Tensor& x, double alpha = 1);
/// log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// x min(max(x + 3, 0), 6) / 6
Tensor hardswish(const Tensor& x);
/// x sigmoid(x)
Tensor silu(const Tensor& x);
enum class Gelu { kErf, kTanh };
/// x Phi(x), with the normal distribution as it is or by tanh. Hendrycks, Gimpel, 2016.
Tensor gelu(const Tensor& x, Gelu form = Gelu::kErf);
/// min(max(x, low), high)
Tensor clamp(const Tensor& x, double low, double high);

// Not differentiable: bool, or integer-valued, results. Shapes broadcast as NumPy's. Error where
// shapes do not broadcast or devices differ.
Tensor eq(const Tensor& a, const Tensor& b);            // a == b
Tensor ne(const Tensor& a, const Tensor& b);            // a != b
Tensor lt(const Tensor& a, const Tensor& b);            // a < b
Tensor le(const Tensor& a, const Tensor& b);            // a <= b
Tensor gt(const Tensor& a, const Tensor& b);            // a > b
Tensor ge(const Tensor& a, const Tensor& b);            // a >= b
Tensor floor_divide(const Tensor& a, const Tensor& b);  // a / b rounded down
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  // ties to even
Tensor trunc(const Tensor& x);  // towards 0
Tensor is_nan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

// In place: the target keeps its dtype and shape. Error where the other shape does not broadcast to
// the target's, for a leaf that requires a gradient, and, but for copy_ and fill_, where integers
// would lose fractions.
Tensor& add_(Tensor& target, const Tensor& x, double alpha = 1);
Tensor& mul_(Tensor& target, const Tensor& x);
Tensor& fill_(Tensor& target, double value);
Tensor& zero_(Tensor& target);
Tensor& copy_(Tensor& target, const Tensor& x);

// Conversion, with a gradient. create.cc
Tensor cast(const Tensor& x, DType dtype);  // x itself when it has the dtype
Tensor to(const Tensor& x, Device device);  // x itself when it lies there
Tensor contiguous(const Tensor& x);         // x itself when it is contiguous
Tensor clone(const Tensor& x);              // always a new, contiguous tensor

// Views and shapes: a result shares x's memory unless it says copy. Error where x has no such
// dimension, or other sizes. view.cc
Tensor reshape(const Tensor& x, const Shape& shape);  // a view where strides allow, else a copy
Tensor view(const Tensor& x, const Shape& shape);     // never copies
/// The dimensions first to last as one; a copy where strides do not allow a view.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// Two dimensions change places.
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
/// The dimensions in another order.
Tensor permute(const Tensor& x, const Shape& order);
/// Dimensions of size 1 repeated to the shape's sizes, whose leading ones may be new.
Tensor expand(const Tensor& x, const Shape& shape);
/// Without the dimension, where its size is 1.
Tensor squeeze(const Tensor& x, int64_t dim);
/// With a dimension of size 1 in front of `dim`.
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// The elements begin, begin + step, ... below end of a dimension.
Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);
/// `length` elements of a dimension from `begin` on.
Tensor narrow(const Tensor& x, int64_t dim, int64_t begin, int64_t length);
/// Without the dimension: what lies at the index there.
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// The elements (i, i + offset) of two dimensions, as the last dimension of a view.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Pieces of `size`; the last may be smaller.
Tensors split(const Tensor& x, int64_t size, int64_t dim);
/// At most so many pieces of one size; the last may be smaller.
Tensors chunk(const Tensor& x, int64_t pieces, int64_t dim);
/// A copy: the tensors one after another along a dimension in which alone they may differ.
Tensor cat(const Tensors& tensors, int64_t dim);
/// A copy: the tensors, of one shape, along a new dimension.
Tensor stack(const Tensors& tensors, int64_t dim);

// Rearranged copies. Error where x has no such dimension. rearrange.cc
/// The dimensions in reverse.
Tensor flip(const Tensor& x, const Shape& dims);
/// Elements moved on by `shifts` and around the end; without dims in row-major order.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims = {});
/// x so many times along each dimension, and along new ones in front.
Tensor repeat(const Tensor& x, const Shape& repeats);
/// The same, where fewer numbers than dimensions count for the last ones.
Tensor tile(const Tensor& x, const Shape& repeats);
enum class Indexing { kIJ, kXY };  // kXY: the first tensor runs along the second dimension
/// Vectors as views of the grid that they span.
Tensors meshgrid(const Tensors& vectors, Indexing indexing = Indexing::kIJ);
/// Matrices [..., m, n] with 0 above (tril) or below (triu) the diagonal that lies so far above the
/// main one.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);
enum class Padding { kConstant, kReflect, kReplicate, kCircular };
/// Wider by pads = {before, after} of the last dimension, then those of the one before it, ...
/// Negative ones cut off, of constant padding.
Tensor pad(const Tensor& x, const std::vector<int64_t>& pads, Padding padding = Padding::kConstant,
           double value = 0);

// Reductions over dims, none of them for all, which stay as sizes of 1 where they are to be kept.
// Sums are in f32 or wider, of integers in i64. Error where x has no such dimension, and for the
// extreme one of no elements. reduce.cc
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Of floating x.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// The product.
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Ties share the gradient.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// sum (x - mean)^2 / (n - correction), or its square root.
Tensor var(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
Tensor std(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
/// (sum |x|^p)^(1/p); the largest |x| for infinity, the least for -infinity, how many are not 0 for
/// 0.
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
/// log sum exp(x), which does not overflow.
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// The sum of a matrix's diagonal.
Tensor trace(const Tensor& x);
/// bool: whether one element is, or all are, other than 0.
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// i64: the place along dim, of equals the first.
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
/// x summed over the dimensions in which `shape` was broadcast to x's: the gradient of
/// broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// Matrix products, of floating operands; sums are in f32 or wider and rounded once. Error where
// inner sizes, or devices, differ. matmul.cc, einsum.cc
/// a [..., m, k] and b [..., k, n] to [..., m, n], whose batches broadcast; a vector is a row on
/// the left and a column on the right, without that dimension in the result.
Tensor matmul(const Tensor& a, const Tensor& b);
/// a [m] and b [n] to [m, n].
Tensor outer(const Tensor& a, const Tensor& b);
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

// Normalisation and probabilities, of floating x; sums are in f32 or wider. Error for integers, and
// for shapes that do not fit.
/// exp(x) / sum exp(x) along dim, of x's shape; in f32 inside an autocast. Error where x has no
/// such dimension. softmax.cc
Tensor softmax(const Tensor& x, int64_t dim);
/// The logarithm of softmax(x, dim), which does not overflow.
Tensor log_softmax(const Tensor& x, int64_t dim);
/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension of x [..., n]; weight and
/// bias [n] may be undefined. norm.cc
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
/// {s, layer_norm(s)} with s = x + residual, in one pass.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& weight, const Tensor& bias,
                                         double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dimension; eps: by default f32's,
/// f64's for f64.
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
/// running = (1 - momentum) running + momentum batch (unbiased variance).
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, bool training, double momentum = 0.1, double eps = 1e-5);
struct CrossEntropyOptions {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
};
/// Mean cross-entropy of logits [N, C] against labels: i64 [N], or probabilities [N, C]. Rows with
/// ignore_index count neither in the sum nor in the mean. Error for another label that is no class.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

// Losses, in f32 inside an autocast. Error where shapes do not fit. loss.cc
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
  /// Broadcasts to [B, H, Tq, Tk]. bool: whether the query sees the key. Floating: added to the
  /// score, where -inf hides the key; it may require a gradient.
  Tensor mask = {};
};

// Attention, whose softmax is in f32 or wider. Error where shapes do not fit. attention.cc
/// softmax(scale Q K^T + mask) V; q, k, v [B, H, T, D], any strides with unit stride in D. A query
/// that sees no key gets 0. Grouped heads: k and v may have H / n heads, each of which serves n
/// neighbouring heads of q.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

/// The same on the fused projection of one input: qkv [B, T, 3 * heads * D], its last dimension
/// ordered as (q|k|v, head, D); result [B, T, heads * D]. No copies in either direction.
Tensor self_attention(const Tensor& qkv, int64_t heads, const AttentionOptions& options = {});

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

// Images. Error where shapes do not fit, or leave no pixel. conv.cc
/// x [N, C, H, W], weight [O, C/groups, Kh, Kw], bias [O] or undefined; the result is
/// (H + 2 padding - dilation (Kh - 1) - 1) / stride + 1 high.
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
  Size2d dilation = 1;            // max pooling only
  /// A last window that begins in the image or the padding in front of it may reach beyond the end.
  bool ceil_mode = false;
};
/// The largest element of each window of x [N, C, H, W] or [C, H, W]; of equals the first has the
/// gradient, and a NaN is largest. Error for a window that holds no pixel.
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
/// {max_pool2d, i64 places h W + w of the maxima}
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x,
                                                  const Pool2dOptions& options = {});
/// The mean of each window of x [N, C, H, W] or [C, H, W], where count_include_pad counts zeros
/// around the image.
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
/// Means of size[0] x size[1] windows that cover the image [N, C, H, W].
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

// Lookup. Error for an index out of bounds. index.cc
/// Rows of weight [V, D] at indices [...]: [..., D].
Tensor embedding(const Tensor& weight, const Tensor& indices);
/// x at the indices i64 [n] of a dimension, which has the size n then.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& indices);
/// Of index's shape: element i... is x's with index[i...] in the place of its index along dim.
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
/// Places of what is not 0: i64 [n, dims], in row-major order.
Tensor nonzero(const Tensor& x);

// Order: a NaN counts as larger than any number, equals keep their order. Error where x has no such
// dimension. sort.cc
/// {sorted, i64 places in x} along dim.
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The places of sort alone.
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// {the k largest or smallest, their places} along dim, in order.
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
/// {values in ascending order, each once, ...}: the place of each element of x among them if
/// wanted, how often each occurs if wanted. Each NaN differs from all others. With a dim the values
/// are x's slices there, ordered by their first elements, then their second ones, ...; a sort for
/// each element of a slice.
Tensors unique(const Tensor& x, bool return_inverse = false, bool return_counts = false,
               std::optional<int64_t> dim = {});
/// Sums of all elements up to each along dim; of integers in i64.
Tensor cumsum(const Tensor& x, int64_t dim);

// Noise. Error for a p outside of [0, 1].
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
