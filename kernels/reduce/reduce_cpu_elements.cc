// One output at a time, its elements one by one in row-major order, as f64 or i64: every reduction
// of every dtype and layout. The limiter is the chain of scalar operations.
#include <algorithm>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/reduce_layout.h"

namespace weft::kernels {
namespace {

template <class Value>
void store(const Tensor& y, int64_t offset, Value value) {
  visit_dtype(y.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<Value, double> && !std::is_integral_v<T>) {
      y.data<T>()[offset] = from_double<T>(value);
    } else {
      y.data<T>()[offset] = static_cast<T>(value);
    }
  });
}

template <class T>
auto widened(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(x);
  } else {
    return to_double(x);
  }
}

/// The reduction of the elements that for_each(f) calls f with, stored at y[offset].
template <class Value, class ForEach>
void reduce_one(const ReduceProblem& p, int64_t count, int64_t offset, ForEach&& for_each) {
  // Integers wrap, for which C++ has only the unsigned types.
  using Sum = std::conditional_t<std::is_same_v<Value, double>, double, uint64_t>;
  const auto sum = [&] {
    Sum total = 0;
    for_each([&](Value x) { total += static_cast<Sum>(x); });
    return static_cast<Value>(total);
  };
  switch (p.reduction) {
    case Reduction::kSum:
      return store(p.y, offset, sum());
    case Reduction::kMean:
      return store(p.y, offset, static_cast<double>(sum()) / static_cast<double>(count));
    case Reduction::kProd: {
      Sum product = 1;
      for_each([&](Value x) { product *= static_cast<Sum>(x); });
      return store(p.y, offset, static_cast<Value>(product));
    }
    case Reduction::kSumSquares: {
      Sum squares = 0;
      for_each([&](Value x) { squares += static_cast<Sum>(x) * static_cast<Sum>(x); });
      return store(p.y, offset, static_cast<Value>(squares));
    }
    case Reduction::kVar: {
      const double n = static_cast<double>(count), mean = static_cast<double>(sum()) / n;
      double squares = 0;
      for_each([&](Value x) {
        const double centred = static_cast<double>(x) - mean;
        squares += centred * centred;
      });
      return store(p.y, offset, squares / std::max(0.0, n - p.correction));
    }
    case Reduction::kMax:
    case Reduction::kMin:
    case Reduction::kArgmax:
    case Reduction::kArgmin: {
      int64_t place = -1, index = 0;
      Value best = 0;
      for_each([&](Value x) {
        const bool better = wants_largest(p.reduction) ? x > best : x < best;
        // A NaN differs from itself.
        if (place < 0 || (best == best && (better || x != x))) {
          best = x;
          place = index;
        }
        ++index;
      });
      return gives_place(p.reduction) ? store(p.y, offset, place) : store(p.y, offset, best);
    }
    case Reduction::kAny:
    case Reduction::kAll: {
      int64_t nonzero = 0;
      for_each([&](Value x) { nonzero += x != 0; });
      const bool result = p.reduction == Reduction::kAny ? nonzero > 0 : nonzero == count;
      return store(p.y, offset, static_cast<int64_t>(result));
    }
  }
}

}  // namespace

void reduce_cpu_elements(const ReduceProblem& p) {
  const ReduceLayout layout = reduce_layout(p.x, p.y, false);
  WEFT_ASSERT(layout.count > 0 || layout.outputs == 0 || !selects(p.reduction));
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(layout.count, 1));
  visit_dtype(p.x.dtype(), [&]<class T>(TypeTag<T>) {
    using Value = decltype(widened(T{}));
    const T* const x = p.x.data<T>();
    parallel_for(layout.outputs, grain, [&](int64_t begin, int64_t end) {
      OffsetWalk in(layout.kept, layout.kept_x, begin), out(layout.kept, layout.kept_y, begin);
      for (int64_t o = begin; o < end; ++o, in.next(), out.next()) {
        reduce_one<Value>(p, layout.count, out.offset(), [&](auto&& f) {
          for_each_offset(layout.reduced, layout.reduced_x,
                          [&](int64_t i) { f(widened(x[in.offset() + i])); });
        });
      }
    });
  });
}

}  // namespace weft::kernels
