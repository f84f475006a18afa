// Resampling: adaptive means, nearest neighbours, bilinear interpolation. One dimension after the
// other.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/fused.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

void check_image(std::string_view op, const Tensor& x) {
  raw::check_floating(op, x);
  WEFT_CHECK(x.dim() == 4, "{}: expected images [N, C, H, W], got {}", op, x);
}

/// How the positions of one dimension of the result map to those of x's.
struct Axis {
  int dim;
  int64_t from, to;
  std::optional<double> factor;  // to / from as the caller gave it

  /// Positions of x per position of the result.
  double step(bool align_corners) const {
    if (align_corners)
      return to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0;
    return factor ? 1 / *factor : static_cast<double>(from) / static_cast<double>(to);
  }
};

Tensor picked(const Tensor& x, int dim, const std::vector<int64_t>& places) {
  const auto count = static_cast<int64_t>(places.size());
  return index_select(x, dim, to(Tensor::from(places, {count}), x.device()));
}

/// The element that PyTorch takes: positions are products of floats, but where the size is doubled,
/// whatever the factor.
Tensor nearest(const Tensor& x, const Axis& axis) {
  const auto step = static_cast<float>(axis.step(false));
  std::vector<int64_t> places;
  for (int64_t i = 0; i < axis.to; ++i) {
    const auto place = static_cast<int64_t>(std::floor(static_cast<float>(i) * step));
    places.push_back(axis.to == 2 * axis.from ? i / 2 : std::min(place, axis.from - 1));
  }
  return picked(x, axis.dim, places);
}

/// The two neighbours of each position, weighted by its distance from them.
Tensor linear(const Tensor& x, const Axis& axis, bool align_corners) {
  const double step = axis.step(align_corners);
  std::vector<int64_t> lower, upper;
  std::vector<double> weights;
  for (int64_t i = 0; i < axis.to; ++i) {
    const double place = align_corners ? static_cast<double>(i) * step
                                       : std::max(0.0, (static_cast<double>(i) + 0.5) * step - 0.5);
    const auto below = std::min(static_cast<int64_t>(place), axis.from - 1);
    lower.push_back(below);
    upper.push_back(std::min(below + 1, axis.from - 1));
    weights.push_back(place - static_cast<double>(below));
  }
  Shape along = Shape::filled(4, 1);
  along[axis.dim] = axis.to;
  const Tensor weight = to(cast(Tensor::from(weights, along), x.dtype()), x.device());
  const Tensor low = picked(x, axis.dim, lower), high = picked(x, axis.dim, upper);
  const auto between = [](const Tensors& t) { return add(t[0], mul(sub(t[1], t[0]), t[2])); };
  return fused(between, {low, high, weight});
}

/// The elements whose mean is element i of the result: [first, second).
std::pair<int64_t, int64_t> window(const Axis& axis, int64_t i) {
  return {i * axis.from / axis.to, ((i + 1) * axis.from + axis.to - 1) / axis.to};
}

/// The means of the windows, element by element of all of them. Products with 0, as those with a
/// matrix of weights, would carry a NaN out of its windows.
Tensor averaged(const Tensor& x, const Axis& axis) {
  int64_t longest = 0;
  for (int64_t i = 0; i < axis.to; ++i) {
    longest = std::max(longest, window(axis, i).second - window(axis, i).first);
  }
  Shape along = Shape::filled(4, 1);
  along[axis.dim] = axis.to;
  Tensor total;
  std::vector<double> sizes(axis.to);
  for (int64_t k = 0; k < longest; ++k) {
    std::vector<int64_t> places;
    std::vector<double> inside;
    for (int64_t i = 0; i < axis.to; ++i) {
      const auto [begin, end] = window(axis, i);
      places.push_back(std::min(begin + k, end - 1));
      inside.push_back(begin + k < end ? 1 : 0);
      sizes[i] += inside[i];
    }
    Tensor term = picked(x, axis.dim, places);
    if (std::ranges::count(inside, 0) > 0) {
      const Tensor outside = to(eq(Tensor::from(inside, along), Tensor::scalar(0)), x.device());
      term = masked_fill(term, outside, 0);
    }
    total = total.defined() ? add_(total, term) : term;
  }
  return div(total, to(cast(Tensor::from(sizes, along), x.dtype()), x.device()));
}

/// [from, to]: column i has the weights of window i.
Tensor averaging(const Axis& axis, const Tensor& like) {
  std::vector<double> weights(axis.from * axis.to);
  for (int64_t i = 0; i < axis.to; ++i) {
    const auto [begin, end] = window(axis, i);
    for (int64_t k = begin; k < end; ++k) {
      weights[k * axis.to + i] = 1 / static_cast<double>(end - begin);
    }
  }
  const Tensor matrix = Tensor::from(weights, {axis.from, axis.to});
  return to(cast(matrix, like.dtype()), like.device());
}

}  // namespace

Tensor adaptive_avg_pool2d(const Tensor& x, const Size2d& size) {
  check_image("adaptive_avg_pool2d", x);
  const int64_t height = x.size(2), width = x.size(3);
  WEFT_CHECK(size[0] > 0 && size[1] > 0 && height > 0 && width > 0,
             "adaptive_avg_pool2d: expected images and a size of at least one pixel, got {} and "
             "[{}, {}]",
             x, size[0], size[1]);
  if (size[0] == 1 && size[1] == 1) return mean(x, {2, 3}, true);
  // Windows that share no pixel are those of average pooling; others overlap.
  if (height % size[0] == 0 && width % size[1] == 0) {
    const Size2d window = {height / size[0], width / size[1]};
    return avg_pool2d(x, {.kernel = window, .stride = window});
  }
  const Axis rows = {2, height, size[0], {}}, columns = {3, width, size[1], {}};
  Tensor y;
  {
    const NoGrad guard;
    y = cast(averaged(averaged(raw::widened(x), rows), columns), x.dtype());
  }
  return record("adaptive_avg_pool2d", {x}, y, {}, [=](const Backward& b) -> Tensors {
    const Autocast as_it_comes(DType::f32);
    const Tensor dy = raw::widened(b.dy());
    const Tensor across = transpose(averaging(columns, dy), 0, 1);
    return {cast(matmul(averaging(rows, dy), matmul(dy, across)), b.dy().dtype())};
  });
}

Tensor interpolate(const Tensor& input, const InterpolateOptions& options) {
  check_image("interpolate", input);
  const Tensor x = autocast_f32(input);
  WEFT_CHECK(options.size.has_value() != options.scale_factor.has_value(),
             "interpolate: expected either a size or a scale factor");
  const bool is_bilinear = options.mode == Interpolation::kBilinear;
  WEFT_CHECK(is_bilinear || !options.align_corners,
             "interpolate: corners are aligned by bilinear interpolation alone");
  std::array<Axis, 2> axes;
  Shape shape = x.shape();
  for (int i = 0; i < 2; ++i) {
    Axis& axis = axes[i] = {2 + i, x.size(2 + i), 0, {}};
    if (options.size) {
      axis.to = (*options.size)[i];
    } else {
      axis.factor = (*options.scale_factor)[i];
      const double to = std::floor(static_cast<double>(axis.from) * *axis.factor);
      WEFT_CHECK(to < 0x1p62, "interpolate: a scale factor of {} makes {} pixels of {}",
                 *axis.factor, to, x);
      axis.to = static_cast<int64_t>(to);
    }
    WEFT_CHECK(axis.from > 0 && axis.to > 0,
               "interpolate: expected images and a result of at least one pixel, got {} of {}",
               axis.to, x);
    shape[axis.dim] = axis.to;
  }
  // One that is too large is refused here, before there are places along its sides.
  Tensor::empty(shape, x.dtype(), x.device());
  Tensor y = is_bilinear ? raw::widened(x) : x;
  for (const Axis& axis : axes) {
    // A size that stays has its elements copied, whatever the factor.
    if (axis.to == axis.from) continue;
    y = is_bilinear ? linear(y, axis, options.align_corners) : nearest(y, axis);
  }
  y = cast(y, x.dtype());
  return y.is_same(x) ? clone(x) : y;
}

}  // namespace weft::ops
