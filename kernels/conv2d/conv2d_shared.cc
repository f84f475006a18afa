#include "kernels/conv2d/conv2d_shared.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/reduce/reduce.h"

namespace weft::kernels {

Conv2dSizes::Conv2dSizes(const Conv2dProblem& p)
    : N(p.image().shape()[0]),
      C(p.image().shape()[1]),
      H(p.image().shape()[2]),
      W(p.image().shape()[3]),
      K(p.filter().shape()[0]),
      R(p.filter().shape()[2]),
      S(p.filter().shape()[3]),
      P(p.result().shape()[2]),
      Q(p.result().shape()[3]),
      G(p.groups) {
  WEFT_ASSERT(p.result().shape()[0] == N && p.result().shape()[1] == K);
  WEFT_ASSERT(G > 0 && K % G == 0 && p.filter().shape()[1] * G == C);
}

void write_through(const Tensor& out, DType dtype,
                   const std::function<void(const Tensor&)>& write) {
  if (out.is_contiguous() && out.dtype() == dtype) return write(out);
  const Tensor scratch = Tensor::empty(out.shape(), dtype, out.device());
  write(scratch);
  copy({.x = scratch, .y = out});
}

int64_t write_through_bytes(const Tensor& t, DType dtype) {
  const bool is_in_place = t.is_contiguous() && t.dtype() == dtype;
  return is_in_place ? 0 : t.numel() * static_cast<int64_t>(itemsize(dtype));
}

int64_t conv2d_cpu_scratch(const Conv2dProblem& p) {
  if (conv2d_is_patch_embedding(p)) return 0;
  const bool is_onednn = p.dtype() != DType::f64 && conv2d_fits_onednn(p);
  return is_onednn ? conv2d_onednn_scratch(p) : conv2d_im2col_scratch(p);
}

void conv2d_bias_gradient(const Conv2dProblem& p) {
  if (!p.dbias.defined()) return;
  const Tensor sums = view::reshape(p.dbias, {1, p.dbias.size(0), 1, 1});
  reduce({.x = p.dy, .y = sums, .reduction = Reduction::kSum});
}

int64_t conv2d_images_per_part(int64_t images, int64_t weight_elements) {
  const int64_t parts =
      std::clamp<int64_t>((int64_t{1} << 22) / std::max<int64_t>(1, weight_elements), 2, 16);
  return std::max<int64_t>(1, (images + parts - 1) / parts);
}

void add_parts(const Tensor& parts) {
  const int64_t elements = parts.size(1);
  const auto add = [&](auto* first) {
    parallel_for(elements, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t part = 1; part < parts.size(0); ++part) {
        const auto* more = first + part * elements;
        for (int64_t i = begin; i < end; ++i) first[i] += more[i];
      }
    });
  };
  parts.dtype() == DType::f64 ? add(parts.data<double>()) : add(parts.data<float>());
}

}  // namespace weft::kernels
