// What the variants of conv2d share: sizes, outputs of other layouts, the bias gradient, and sums
// of partial weight gradients.
#pragma once

#include <functional>

#include "kernels/conv2d/conv2d.h"

namespace weft::kernels {

/// The sizes of a problem, by the names of conv2d.h.
struct Conv2dSizes {
  explicit Conv2dSizes(const Conv2dProblem& p);

  int64_t N, C, H, W, K, R, S, P, Q, G;
  int64_t patch() const { return C / G * R * S; }  // elements that one output reads
};

/// Calls write(t) with a contiguous tensor of out's shape and of `dtype`: out itself if it is one,
/// else a scratch tensor that is copied to out afterwards.
void write_through(const Tensor& out, DType dtype, const std::function<void(const Tensor&)>& write);

/// A patch embedding as copies and matrix products, on any device.
void conv2d_as_patches(const Conv2dProblem& p);

/// dbias[k] = sum of dy[n,k]; nothing when dbias is undefined.
void conv2d_bias_gradient(const Conv2dProblem& p);

/// Images in each part of a weight gradient: parts are summed alone and then in order, so that the
/// bits depend on the shape only. At most 16 parts, and about 16 MiB of partial gradients.
int64_t conv2d_images_per_part(int64_t images, int64_t weight_elements);

/// Bytes that the CPU's variant of a problem takes for itself in the calling thread: other layouts
/// and formats of operands and results, columns, scratchpads, and partial sums of weight gradients.
/// 0 for a patch embedding, of whose operands they are a small part.
int64_t conv2d_cpu_scratch(const Conv2dProblem& p);
/// Of the variants that these are of.
int64_t conv2d_onednn_scratch(const Conv2dProblem& p);
int64_t conv2d_im2col_scratch(const Conv2dProblem& p);
/// Bytes of what write_through() writes to in t's place.
int64_t write_through_bytes(const Tensor& t, DType dtype);

/// parts[0] += parts[1] + parts[2] + ..., in that order: the rows of [parts, elements] in f32 or
/// f64.
void add_parts(const Tensor& parts);

}  // namespace weft::kernels
