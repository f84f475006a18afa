// Line by line, one addition after the other. The limiter is the latency of an addition, 4 cycles
// an element, along the last axis; the loads of strided elements along others.
#include "core/parallel.h"
#include "kernels/reduce/reduce_layout.h"
#include "kernels/scan/scan.h"

namespace weft::kernels {
namespace {

template <class T>
void sum_line(const T* x, int64_t x_step, const Tensor& y, int64_t offset, int64_t y_step,
              int64_t size) {
  if constexpr (std::is_integral_v<T>) {
    int64_t* const to = y.data<int64_t>() + offset;
    uint64_t sum = 0;  // integers wrap, for which C++ has only the unsigned types
    for (int64_t i = 0; i < size; ++i) {
      sum += static_cast<uint64_t>(x[i * x_step]);
      to[i * y_step] = static_cast<int64_t>(sum);
    }
  } else {
    T* const to = y.data<T>() + offset;
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += to_double(x[i * x_step]);
      to[i * y_step] = from_double<T>(sum);
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
  const int64_t grain = std::max<int64_t>(1, 16384 / size);
  visit_dtype(p.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    WEFT_ASSERT(p.y.dtype() == (std::is_integral_v<T> ? DType::i64 : p.dtype()));
    parallel_for(numel(lines), grain, [&](int64_t begin, int64_t end) {
      OffsetWalk x(lines, x_lines, begin), y(lines, y_lines, begin);
      for (int64_t line = begin; line < end; ++line, x.next(), y.next()) {
        sum_line(p.x.data<T>() + x.offset() + first * x_step, sign * x_step, p.y,
                 y.offset() + first * y_step, sign * y_step, size);
      }
    });
  });
}

}  // namespace weft::kernels
