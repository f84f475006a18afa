// Convolution as a matrix product on windows laid out as rows [n P Q, C/G R S], for so many images
// at a time that the rows take at most 256 MiB. One kernel writes the rows (im2col), one gathers
// the data gradient from them (col2im): a thread for each pixel adds the windows that hold it, in
// the order of r and s, without atomics. The rows of the data gradient are f32, so that they are
// rounded once. The copies are memory-bound; the product is the limiter from some 64 channels on.
#include "core/stream.h"
#include "core/view.h"
#include "kernels/conv2d/conv2d_shared.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/warp.cuh"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;

/// The windows of some images' channels of one group.
struct Windows {
  Numbers image, rows;  // rows [images P Q, channels R S], contiguous
  int64_t images, channels;
  std::array<int64_t, 4> strides;  // of the image
  Conv2dSizes s;
  std::array<int64_t, 2> stride, padding, dilation;

  Windows(const Conv2dProblem& p, const Conv2dSizes& s, const Tensor& image, const Tensor& rows)
      : image(image),
        rows(rows),
        images(image.size(0)),
        channels(image.size(1)),
        strides{image.stride(0), image.stride(1), image.stride(2), image.stride(3)},
        s(s),
        stride(p.stride),
        padding(p.padding),
        dilation(p.dilation) {}
  __device__ int64_t pixel(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
  }
};

/// Neighbouring threads write neighbouring elements of the rows.
template <class Acc>
__global__ void __launch_bounds__(kThreads) im2col_kernel(Windows t) {
  const int64_t total = t.images * t.s.P * t.s.Q * t.channels * t.s.R * t.s.S;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    int64_t rest = i;
    const auto next = [&](int64_t size) {
      const int64_t index = rest % size;
      rest /= size;
      return index;
    };
    const int64_t s = next(t.s.S), r = next(t.s.R), c = next(t.channels);
    const int64_t q = next(t.s.Q), p = next(t.s.P), n = rest;
    const int64_t h = p * t.stride[0] - t.padding[0] + r * t.dilation[0];
    const int64_t w = q * t.stride[1] - t.padding[1] + s * t.dilation[1];
    const bool is_inside = h >= 0 && h < t.s.H && w >= 0 && w < t.s.W;
    store_one(t.rows, i, is_inside ? load_one<Acc>(t.image, t.pixel(n, c, h, w)) : Acc(0));
  }
}

template <class Acc>
__global__ void __launch_bounds__(kThreads) col2im_kernel(Windows t) {
  const int64_t W = t.s.W, H = t.s.H, total = t.images * t.channels * H * W;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t w = i % W, h = i / W % H;
    const int64_t c = i / (W * H) % t.channels, n = i / (W * H * t.channels);
    Acc sum = 0;
    for (int64_t r = 0; r < t.s.R; ++r) {
      const int64_t above = h + t.padding[0] - r * t.dilation[0];
      if (above < 0 || above % t.stride[0] != 0 || above / t.stride[0] >= t.s.P) continue;
      for (int64_t s = 0; s < t.s.S; ++s) {
        const int64_t left = w + t.padding[1] - s * t.dilation[1];
        if (left < 0 || left % t.stride[1] != 0 || left / t.stride[1] >= t.s.Q) continue;
        const int64_t row = (n * t.s.P + above / t.stride[0]) * t.s.Q + left / t.stride[1];
        sum += load_one<Acc>(t.rows, ((row * t.channels + c) * t.s.R + r) * t.s.S + s);
      }
    }
    store_one(t.image, t.pixel(n, c, h, w), sum);
  }
}

/// im2col, or col2im, which writes the image.
void copy_windows(const Conv2dProblem& p, const Conv2dSizes& s, const Tensor& image,
                  const Tensor& rows, bool to_image) {
  const int64_t written = (to_image ? image : rows).numel();
  if (written == 0) return;
  const Windows t(p, s, image, rows);
  const runtime::StreamHandle stream = current_stream_handle(image.device());
  with_arithmetic_zero(image.dtype(), [&]<class Acc>(Acc) {
    const unsigned blocks = blocks_for(written, kThreads);
    if (to_image) {
      WEFT_LAUNCH(col2im_kernel<Acc>, blocks, kThreads, 0, stream, t);
    } else {
      WEFT_LAUNCH(im2col_kernel<Acc>, blocks, kThreads, 0, stream, t);
    }
  });
}

/// [N, K, P, Q] as the rows [N P Q, K], a copy unless it lies so.
Tensor result_rows(const Tensor& t) {
  const Tensor last = contiguous(view::permute(t, {0, 2, 3, 1}));
  return view::reshape(last, {t.size(0) * t.size(2) * t.size(3), t.size(1)});
}

}  // namespace

void conv2d_cuda_im2col(const Conv2dProblem& p) {
  const Conv2dSizes s(p);
  const auto rows_of = [&](const Tensor& image) {
    const Tensor rows =
        Tensor::empty({image.size(0) * s.P * s.Q, s.patch()}, image.dtype(), image.device());
    copy_windows(p, s, image, rows, false);
    return rows;
  };
  const DType wide = p.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const int64_t row_bytes =
      std::max<int64_t>(1, s.P * s.Q * s.patch()) * static_cast<int64_t>(itemsize(wide));
  const int64_t most =
      std::clamp<int64_t>((int64_t{256} << 20) / row_bytes, 1, std::max<int64_t>(1, s.N));
  const int64_t channels = s.C / s.G, filters = s.K / s.G;
  const Tensor dw = p.dw.defined() ? Tensor::zeros({s.K, s.patch()}, wide, p.device()) : Tensor();
  for (int64_t g = 0; g < s.G; ++g) {
    const auto of_group = [&](const Tensor& t, int64_t dim, int64_t size) {
      return view::narrow(t, dim, g * size, size);
    };
    const auto weights = [&] {
      return view::reshape(contiguous(of_group(p.w, 0, filters)), {filters, s.patch()});
    };
    for (int64_t first = 0; first < s.N; first += most) {
      const int64_t images = std::min(most, s.N - first);
      const auto some = [&](const Tensor& t, int64_t size) {
        return of_group(view::narrow(t, 0, first, images), 1, size);
      };
      switch (p.pass()) {
        case Conv2dPass::kForward:
          write_through(view::permute(some(p.y, filters), {0, 2, 3, 1}), p.dtype(),
                        [&](const Tensor& y) {
                          gemm({.a = rows_of(some(p.x, channels)),
                                .b = view::transpose(weights(), 0, 1),
                                .c = view::reshape(y, {images * s.P * s.Q, filters}),
                                .bias = p.bias.defined() ? of_group(p.bias, 0, filters) : Tensor(),
                                .numerics = p.numerics});
                        });
          break;
        case Conv2dPass::kDataGradient: {
          const Tensor rows = Tensor::empty({images * s.P * s.Q, s.patch()}, wide, p.device());
          gemm({.a = result_rows(some(p.dy, filters)),
                .b = weights(),
                .c = rows,
                .numerics = p.numerics});
          copy_windows(p, s, some(p.dx, channels), rows, true);
          break;
        }
        case Conv2dPass::kWeightGradient:
          gemm({.a = view::transpose(result_rows(some(p.dy, filters)), 0, 1),
                .b = rows_of(some(p.x, channels)),
                .c = of_group(dw, 0, filters),
                .accumulate = true,
                .numerics = p.numerics});
          break;
      }
    }
  }
  if (!p.dw.defined()) return;
  copy({.x = view::reshape(dw, p.dw.shape()), .y = p.dw});
  conv2d_bias_gradient(p);
}

}  // namespace weft::kernels
