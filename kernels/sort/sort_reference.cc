// Plain loops: a stable sort of the places of each line by the numbers there. All is exact.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/sort/sort.h"

namespace weft::kernels {

std::vector<Expected> sort_reference(const SortProblem& p) {
  const int axis = wrap_dim(p.axis, p.x.dim(), "sort");
  const int64_t size = p.x.shape()[axis], kept = p.values.shape()[axis];
  const int64_t step = contiguous_strides(p.x.shape())[axis];
  const std::vector<double> x = p.x.to_vector();
  const auto count = static_cast<size_t>(p.values.numel());
  Expected values = Expected::of_size(count), places = Expected::of_size(count);
  if (count == 0) return {values, places};
  for (int64_t line = 0; line < p.x.numel() / size; ++line) {
    const int64_t outer = line / step, inner = line % step;
    const auto at = [&](int64_t i) { return x[(outer * size + i) * step + inner]; };
    const auto is_less = [&](int64_t i, int64_t j) {
      const double a = at(i), b = at(j);
      return !std::isnan(a) && (std::isnan(b) || a < b);
    };
    std::vector<int64_t> order(size);
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
      return p.descending ? is_less(j, i) : is_less(i, j);
    });
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t to = (outer * kept + i) * step + inner;
      values.put(to, at(order[i]), 0);
      places.put(to, static_cast<double>(order[i]), 0);
    }
  }
  return {values, places};
}

}  // namespace weft::kernels
