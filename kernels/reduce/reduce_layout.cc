#include "kernels/reduce/reduce_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weft::kernels {
namespace {

struct Axis {
  int64_t size, x, y;  // strides in x and y; a reduced axis has none in y
};

/// Joins an axis with the one after it where one stride leads through both.
std::vector<Axis> joined(std::vector<Axis> axes, bool any_order) {
  if (axes.size() < 2) return axes;
  if (any_order) {
    std::stable_sort(axes.begin(), axes.end(),
                     [](const Axis& a, const Axis& b) { return a.x > b.x; });
  }
  std::vector<Axis> result;
  for (const Axis& axis : axes) {
    if (!result.empty() && result.back().x == axis.size * axis.x &&
        result.back().y == axis.size * axis.y) {
      result.back() = {result.back().size * axis.size, axis.x, axis.y};
    } else {
      result.push_back(axis);
    }
  }
  return result;
}

}  // namespace

ReduceLayout reduce_layout(const Tensor& x, const Tensor& y, bool any_order) {
  WEFT_ASSERT(x.dim() == y.dim());
  std::vector<Axis> kept, reduced;
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t size = x.shape()[d];
    WEFT_ASSERT(y.shape()[d] == size || y.shape()[d] == 1);
    if (size == 1) continue;
    if (y.shape()[d] == size) {
      kept.push_back({size, x.strides()[d], y.strides()[d]});
    } else {
      reduced.push_back({size, x.strides()[d], 0});
    }
  }
  ReduceLayout layout;
  for (const Axis& axis : joined(std::move(kept), any_order)) {
    layout.kept.push_back(axis.size);
    layout.kept_x.push_back(axis.x);
    layout.kept_y.push_back(axis.y);
    layout.outputs *= axis.size;
  }
  for (const Axis& axis : joined(std::move(reduced), any_order)) {
    layout.reduced.push_back(axis.size);
    layout.reduced_x.push_back(axis.x);
    layout.count *= axis.size;
  }
  return layout;
}

OffsetWalk::OffsetWalk(const Shape& shape, const Strides& strides, int64_t index)
    : shape_(shape), strides_(strides) {
  for (int d = shape.size() - 1; d >= 0; --d) {
    place_[d] = index % shape[d];
    offset_ += place_[d] * strides[d];
    index /= shape[d];
  }
}

}  // namespace weft::kernels
