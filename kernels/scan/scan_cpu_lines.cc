// Eight lines at a time, each one addition after the other: what one of them waits for, 4 cycles an
// element, the others make use of. The limiter is memory then; the loads of strided elements where
// the lines lie across it.
#include "core/parallel.h"
#include "kernels/reduce/reduce_layout.h"
#include "kernels/scan/scan.h"

namespace weft::kernels {
namespace {

constexpr int kLines = 8;

/// Integers wrap, for which C++ has only the unsigned types.
template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
template <class T>
using Result = std::conditional_t<std::is_integral_v<T>, int64_t, T>;

template <class T>
Sum<T> as_sum(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<Sum<T>>(x);
  else
    return to_double(x);
}

template <class T>
Result<T> as_result(Sum<T> sum) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<Result<T>>(sum);
  else
    return from_double<T>(sum);
}

/// Of n lines, whose first elements are x and y.
template <int n, class T>
void sum_lines(const T* const* x, int64_t x_step, Result<T>* const* y, int64_t y_step,
               int64_t size) {
  Sum<T> sums[n] = {};
  for (int64_t i = 0; i < size; ++i) {
    for (int k = 0; k < n; ++k) {
      sums[k] += as_sum(x[k][i * x_step]);
      y[k][i * y_step] = as_result<T>(sums[k]);
    }
  }
}

}  // namespace

void scan_cpu_lines(const ScanProblem& p) {
  if (p.x.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.x.dim(), "scan");
  Shape lines = p.x.shape();
  Strides x_lines = p.x.strides(), y_lines = p.y.strides();
  for (Shape* list : {&lines, &x_lines, &y_lines}) list->erase(axis);
  const int64_t size = p.x.shape()[axis], sign = p.reverse ? -1 : 1;
  const int64_t x_step = p.x.strides()[axis], y_step = p.y.strides()[axis];
  const int64_t first = p.reverse ? size - 1 : 0;
  const int64_t grain = std::max<int64_t>(kLines, 16384 / size);
  visit_dtype(p.dtype(), [&]<class T>(TypeTag<T>) {
    WEFT_ASSERT(p.y.dtype() == (std::is_integral_v<T> ? DType::i64 : p.dtype()));
    parallel_for(numel(lines), grain, [&](int64_t begin, int64_t end) {
      OffsetWalk x(lines, x_lines, begin), y(lines, y_lines, begin);
      const T* from[kLines];
      Result<T>* to[kLines];
      for (int64_t line = begin; line < end; line += kLines) {
        const int count = static_cast<int>(std::min<int64_t>(kLines, end - line));
        for (int k = 0; k < count; ++k, x.next(), y.next()) {
          from[k] = p.x.data<T>() + x.offset() + first * x_step;
          to[k] = p.y.data<Result<T>>() + y.offset() + first * y_step;
        }
        if (count == kLines) {
          sum_lines<kLines, T>(from, sign * x_step, to, sign * y_step, size);
          continue;
        }
        for (int k = 0; k < count; ++k) {
          sum_lines<1, T>(from + k, sign * x_step, to + k, sign * y_step, size);
        }
      }
    });
  });
}

}  // namespace weft::kernels
