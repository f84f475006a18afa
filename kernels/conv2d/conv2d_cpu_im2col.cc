// The general convolution, an image at a time: its columns [C R S, P Q] hold what every output
// reads, one row for each element of the window, so that each pass is a GEMM with the weights
// [K, C R S] (a batch of G of them when grouped). Threads share the images; one image's GEMM uses
// them all. A thread holds the columns of one image only. Copying them is the limiter for few
// output channels, the GEMM for many.
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/conv2d/conv2d_shared.h"
#include "kernels/copy/copy.h"
#include "kernels/elementwise/walk.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/onednn.h"

namespace weft::kernels {
namespace {

/// Calls f(row, h, first, last, w) for each output row p of each window element of each channel:
/// outputs [first, last) of row `row` of the columns, and only they, read the image, from (h, w)
/// on. A window element above or below the image has first = last = 0.
template <class F>
void for_each_column_row(const Conv2dProblem& p, const Conv2dSizes& s, int64_t channel, F&& f) {
  const auto ceil_div = [](int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; };
  for (int64_t r = 0; r < s.R; ++r) {
    for (int64_t t = 0; t < s.S; ++t) {
      const int64_t row = (channel * s.R + r) * s.S + t;
      const int64_t shift = t * p.dilation[1] - p.padding[1];
      const int64_t first = std::min(s.Q, ceil_div(-shift, p.stride[1]));
      const int64_t last = std::clamp(ceil_div(s.W - shift, p.stride[1]), first, s.Q);
      for (int64_t o = 0; o < s.P; ++o) {
        const int64_t h = o * p.stride[0] - p.padding[0] + r * p.dilation[0];
        const bool inside = h >= 0 && h < s.H;
        f(row * s.P * s.Q + o * s.Q, h, inside ? first : 0, inside ? last : 0,
          first * p.stride[1] + shift);
      }
    }
  }
}

/// Channel `channel` of image [C, H, W], contiguous, into its rows of the columns.
template <class T>
void gather_columns(const Conv2dProblem& p, const Conv2dSizes& s, const T* image, int64_t channel,
                    T* columns) {
  const T* plane = image + channel * s.H * s.W;
  const int64_t step = p.stride[1];
  for_each_column_row(
      p, s, channel, [&](int64_t at, int64_t h, int64_t first, int64_t last, int64_t w) {
        T* to = columns + at;
        std::memset(static_cast<void*>(to), 0, first * sizeof(T));
        if (last > first) {
          const T* from = plane + h * s.W + w;
          if (step == 1) {
            std::memcpy(static_cast<void*>(to + first), from, (last - first) * sizeof(T));
          } else {
            for (int64_t q = first; q < last; ++q) to[q] = from[(q - first) * step];
          }
        }
        std::memset(static_cast<void*>(to + last), 0, (s.Q - last) * sizeof(T));
      });
}

/// The transposed map: adds the rows of the columns to the channel's plane, which it zeroes first.
template <class T>
void scatter_columns(const Conv2dProblem& p, const Conv2dSizes& s, const T* columns,
                     int64_t channel, T* image) {
  T* plane = image + channel * s.H * s.W;
  std::fill_n(plane, s.H * s.W, T{0});
  const int64_t step = p.stride[1];
  for_each_column_row(p, s, channel,
                      [&](int64_t at, int64_t h, int64_t first, int64_t last, int64_t w) {
                        if (last <= first) return;
                        const T* from = columns + at;
                        T* to = plane + h * s.W + w;
                        for (int64_t q = first; q < last; ++q) to[(q - first) * step] += from[q];
                      });
}

/// The dtype of sums.
DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

struct Im2col {
  const Conv2dProblem& p;
  Conv2dSizes s;

  Tensor image_at(const Tensor& t, int64_t n) const { return view::select(t, 0, n); }
  /// [G rows, columns] as [G, rows, columns], or [rows, columns] when there is one group.
  Tensor grouped(const Tensor& t, int64_t rows, int64_t columns) const {
    return s.G == 1 ? view::reshape(t, {rows, columns}) : view::reshape(t, {s.G, rows, columns});
  }
  Tensor result_matrix(const Tensor& t) const { return grouped(t, s.K / s.G, s.P * s.Q); }
  Tensor weight_matrix(const Tensor& t) const { return grouped(t, s.K / s.G, s.patch()); }
  Tensor column_matrix(const Tensor& t) const { return grouped(t, s.patch(), s.P * s.Q); }
  Tensor empty_columns(DType dtype) const {
    return Tensor::empty({s.C * s.R * s.S, s.P * s.Q}, dtype);
  }

  void gather(const Tensor& image, const Tensor& columns) const {
    with_word(image.itemsize(), [&]<class T>(T) {
      parallel_for(s.C, 1, [&](int64_t c, int64_t) {
        gather_columns(p, s, static_cast<const T*>(image.raw()), c, static_cast<T*>(columns.raw()));
      });
    });
  }

  void scatter(const Tensor& columns, const Tensor& image) const {
    const auto run = [&]<class T>(T) {
      parallel_for(s.C, 1, [&](int64_t c, int64_t) {
        scatter_columns(p, s, columns.data<T>(), c, image.data<T>());
      });
    };
    columns.dtype() == DType::f64 ? run(double{}) : run(float{});
  }

  void forward() const {
    const Tensor x = contiguous(p.x), w = weight_matrix(contiguous(p.w));
    const Tensor bias = p.bias.defined() ? contiguous(p.bias, wide(p.dtype())) : Tensor();
    write_through(p.y, p.dtype(), [&](const Tensor& y) {
      parallel_for(s.N, 1, [&](int64_t n, int64_t) {
        const Tensor columns = empty_columns(p.dtype());
        gather(image_at(x, n), columns);
        write_through(image_at(y, n), wide(p.dtype()), [&](const Tensor& out) {
          if (bias.defined()) {
            copy({.x = view::expand(view::reshape(bias, {s.K, 1, 1}), out.shape()), .y = out});
          }
          gemm({.a = w,
                .b = column_matrix(columns),
                .c = result_matrix(out),
                .accumulate = bias.defined(),
                .numerics = p.numerics});
        });
      });
    });
  }

  /// Bytes that a pass takes for itself.
  int64_t scratch() const {
    const Conv2dPass pass = p.pass();
    const bool is_forward = pass == Conv2dPass::kForward;
    const bool is_weight_gradient = pass == Conv2dPass::kWeightGradient;
    const DType dtype = p.dtype(), sum = wide(dtype);
    // The product of an image, of which the sizes count.
    const Tensor columns = empty_columns(pass == Conv2dPass::kDataGradient ? sum : dtype);
    const Tensor w =
        weight_matrix(Tensor::empty({s.K, s.patch()}, is_weight_gradient ? sum : dtype));
    const Tensor result = result_matrix(Tensor::empty({s.K, s.P * s.Q}, is_forward ? sum : dtype));
    const Tensor matrix = column_matrix(columns);
    GemmProblem product{.a = w, .b = matrix, .c = result, .numerics = p.numerics};
    if (is_weight_gradient) product = {.a = result, .b = view::transpose(matrix, -2, -1), .c = w};
    if (pass == Conv2dPass::kDataGradient) {
      product = {.a = view::transpose(w, -2, -1), .b = result, .c = matrix};
    }
    product.numerics = p.numerics;
    const auto size = static_cast<int64_t>(itemsize(sum));
    const int64_t images = is_weight_gradient ? conv2d_images_per_part(s.N, p.dw.numel()) : 1;
    const int64_t tasks = (s.N + images - 1) / images;
    const OnednnThreads threads(tasks > 1 ? 1 : num_threads());  // of a product
    const int64_t of_product = gemm_cpu_scratch(product);
    // Narrow results of an image are written wide first.
    const int64_t of_image = dtype == sum || is_weight_gradient ? 0
                             : is_forward                       ? of_product + result.numel() * size
                                                                : s.C * s.H * s.W * size;
    int64_t all = static_cast<int64_t>(columns.nbytes()) + std::max(of_product, of_image);
    if (is_weight_gradient) all += tasks * p.dw.numel() * size;
    for (const Tensor& t : {p.image(), p.result()}) all += write_through_bytes(t, dtype);
    return is_weight_gradient ? all : all + write_through_bytes(p.w, dtype);
  }

  void data_gradient() const {
    const Tensor dy = contiguous(p.dy), w = weight_matrix(contiguous(p.w));
    write_through(p.dx, p.dtype(), [&](const Tensor& dx) {
      parallel_for(s.N, 1, [&](int64_t n, int64_t) {
        const Tensor columns = empty_columns(wide(p.dtype()));
        gemm({.a = view::transpose(w, -2, -1),
              .b = result_matrix(image_at(dy, n)),
              .c = column_matrix(columns),
              .numerics = p.numerics});
        write_through(image_at(dx, n), wide(p.dtype()),
                      [&](const Tensor& out) { scatter(columns, out); });
      });
    });
  }

  void weight_gradient() const {
    const Tensor x = contiguous(p.x), dy = contiguous(p.dy);
    const int64_t elements = p.dw.numel();
    const int64_t images = conv2d_images_per_part(s.N, elements);
    const int64_t parts = std::max<int64_t>(1, (s.N + images - 1) / images);
    const Tensor sums = Tensor::empty({parts, elements}, wide(p.dtype()));
    if (s.N == 0) std::memset(sums.raw(), 0, sums.nbytes());
    parallel_for(s.N, images, [&](int64_t begin, int64_t end) {
      const Tensor columns = empty_columns(p.dtype());
      for (int64_t n = begin; n < end; ++n) {
        gather(image_at(x, n), columns);
        gemm({.a = result_matrix(image_at(dy, n)),
              .b = view::transpose(column_matrix(columns), -2, -1),
              .c = weight_matrix(image_at(sums, begin / images)),
              .accumulate = n > begin,
              .numerics = p.numerics});
      }
    });
    add_parts(sums);
    copy({.x = view::reshape(image_at(sums, 0), p.dw.shape()), .y = p.dw});
    conv2d_bias_gradient(p);
  }
};

}  // namespace

int64_t conv2d_im2col_scratch(const Conv2dProblem& p) {
  return Im2col{p, Conv2dSizes(p)}.scratch();
}

void conv2d_cpu_im2col(const Conv2dProblem& p) {
  const Im2col conv{p, Conv2dSizes(p)};
  switch (p.pass()) {
    case Conv2dPass::kForward:
      return conv.forward();
    case Conv2dPass::kDataGradient:
      return conv.data_gradient();
    case Conv2dPass::kWeightGradient:
      return conv.weight_gradient();
  }
}

}  // namespace weft::kernels
