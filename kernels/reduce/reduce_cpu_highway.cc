// Sums, means, variances and extremes of floating tensors in vectors, rows or columns.
//
// Rows (the reduced axis is the closer one): each run of a row in blocks, summed in 4 vectors of
// accumulators and added to the row's f64 total. Columns (a kept axis is the closer one): up to
// 1024 columns at a time, f32 accumulators for 16 rows, then added to f64 totals. Elements are
// widened to f32 in L1 first; sums of bf16 widen them as they read. Either way long reductions are
// cut into chunks that depend on the shape alone; chunks of one output are joined in order. The
// variance takes a second pass about the mean, sums of squares one about 0. Where squares are
// beyond f32, or below it under an f64 result, all is done again in f64. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/reduce_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/reduce_layout.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// What one pass over x folds: x, (x - centre)^2, or the larger or smaller of two.
enum class Fold { kSum, kSquares, kMax, kMin };

template <Fold kFold, class Acc>
constexpr Acc initial() {
  if (kFold == Fold::kMax) return -std::numeric_limits<Acc>::infinity();
  if (kFold == Fold::kMin) return std::numeric_limits<Acc>::infinity();
  return 0;
}

/// A NaN, once met, stays.
template <Fold kFold>
double join(double a, double b) {
  if constexpr (kFold == Fold::kMax) return b > a || std::isnan(b) ? b : a;
  if constexpr (kFold == Fold::kMin) return b < a || std::isnan(b) ? b : a;
  return a + b;
}

template <Fold kFold, class D, class V>
HWY_INLINE V fold(D, V total, V x, V centre) {
  if constexpr (kFold == Fold::kMax || kFold == Fold::kMin) {
    const auto better = kFold == Fold::kMax ? hn::Gt(x, total) : hn::Lt(x, total);
    return hn::IfThenElse(hn::Or(better, hn::IsNaN(x)), x, total);
  } else if constexpr (kFold == Fold::kSquares) {
    const V centred = hn::Sub(x, centre);
    return hn::Add(total, hn::Mul(centred, centred));
  } else {
    return hn::Add(total, x);
  }
}

/// m <= Lanes elements as Acc; the lanes beyond are 0, and elements of f32 may be summed in f64.
template <class D>
HWY_INLINE hn::Vec<D> load_terms(D d, const hn::TFromD<D>* p, size_t m) {
  return load_part(d, p, m);
}
template <class D>
HWY_INLINE hn::Vec<D> load_terms(D d, const bf16* p, size_t m) {
  return m == hn::Lanes(d) ? load_f32(d, p) : load_f32_n(d, p, m);
}
template <class D, std::enable_if_t<std::is_same_v<hn::TFromD<D>, double>, int> = 0>
HWY_INLINE hn::Vec<D> load_terms(D d, const float* p, size_t m) {
  return hn::PromoteTo(d, load_part(hn::Rebind<float, D>(), p, m));
}

/// A row of x: widened to the type of the arithmetic, or bf16 where it lies.
template <class Acc>
HWY_NOINLINE const Acc* read_block(const Tensor& x, int64_t offset, int64_t stride, int64_t n,
                                   Acc* buffer) {
  return read_row(x.dtype(), x.raw(), offset, stride, n, buffer);
}
HWY_INLINE const bf16* read_block(const Tensor& x, int64_t offset, int64_t, int64_t, bf16*) {
  return x.data<bf16>() + offset;
}

/// Elements of a block of a row: 16 for each lane of each of 4 accumulators.
template <class Acc>
HWY_INLINE int64_t row_block() {
  return 64 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<Acc>()));
}

/// x: of Acc, or of bf16 that is summed.
template <Fold kFold, class Acc, class T>
double fold_block(const T* x, int64_t n, Acc centre) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const V c = hn::Set(d, centre);
  if constexpr (kFold == Fold::kSum) {
    return sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR { return load_terms(d, x + i, m); });
  } else if constexpr (kFold == Fold::kSquares) {
    return sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
      const V centred = hn::Sub(load_terms(d, x + i, m), c);
      return hn::Mul(centred, centred);
    });
  } else {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V a = hn::Set(d, initial<kFold, Acc>()), b = a;
    int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      a = fold<kFold>(d, a, hn::LoadU(d, x + i), c);
      b = fold<kFold>(d, b, hn::LoadU(d, x + i + lanes), c);
    }
    HWY_ALIGN Acc parts[HWY_MAX_BYTES / sizeof(Acc)];
    hn::Store(fold<kFold>(d, a, b, c), d, parts);
    double result = initial<kFold, Acc>();
    if (i > 0) {
      for (int64_t j = 0; j < lanes; ++j) result = join<kFold>(result, parts[j]);
    }
    for (; i < n; ++i) result = join<kFold>(result, x[i]);
    return result;
  }
}

/// totals[j] folded with rows[k][j] for the `group` rows in turn, j < n.
template <Fold kFold, class Acc, class T>
HWY_INLINE void fold_rows(const T* const* rows, int64_t group, int64_t n, const Acc* centre,
                          Acc* totals) {
  const hn::ScalableTag<Acc> d;
  for_each_vector(d, n, [&](size_t j, size_t m) HWY_ATTR {
    const auto c = kFold == Fold::kSquares ? hn::LoadU(d, centre + j) : hn::Zero(d);
    auto total = hn::LoadU(d, totals + j);
    for (int64_t k = 0; k < group; ++k) {
      total = fold<kFold>(d, total, load_terms(d, rows[k] + j, m), c);
    }
    hn::StoreU(total, d, totals + j);
  });
}

/// One pass: partial[chunk * outputs + output], the fold of the chunk's elements of each output.
/// centres: one per output, for kSquares; null: 0.
class Partials {
 public:
  explicit Partials(const ReduceLayout& layout) : layout_(layout) {
    by_rows_ = layout.kept.empty() ||
               (!layout.reduced.empty() && layout.reduced_x.back() <= layout.kept_x.back());
    // A row's chunk is long enough to start a thread for; a column's keeps the partial results
    // small beside x.
    chunk_ = by_rows_ ? 65536 : std::max<int64_t>(128, (layout.count + 31) / 32);
    chunks_ = (layout.count + chunk_ - 1) / chunk_;
    values_ = Tensor::empty({chunks_, layout.outputs}, DType::f64);
  }

  template <Fold kFold, class Acc>
  void fill(const Tensor& x, const double* centres) {
    const Strides& strides = by_rows_ ? layout_.reduced_x : layout_.kept_x;
    const int64_t stride = strides.empty() ? 1 : strides.back();
    if constexpr (std::is_same_v<Acc, float> && (kFold == Fold::kSum || kFold == Fold::kSquares)) {
      // Sums read bf16 memory themselves, without a buffer in between.
      if (x.dtype() == DType::bf16 && stride == 1)
        return fill_from<kFold, Acc, bf16>(x, 1, centres);
    }
    if constexpr (std::is_same_v<Acc, double> && (kFold == Fold::kSum || kFold == Fold::kSquares)) {
      if (x.dtype() != DType::f64) return fill_from<kFold, Acc, float>(x, stride, centres);
    }
    fill_from<kFold, Acc, Acc>(x, stride, centres);
  }
  /// Whether these sums of f32's squares are what f64's would be, as y holds them: below 2^-120 of
  /// an element underflow, 2^-150 for each, could be seen.
  bool are_in_range(DType y) const {
    const double least =
        y == DType::f64 ? 0x1p-120 * static_cast<double>(std::min(layout_.count, chunk_)) : 0;
    const double* const all = values_.data<double>();
    return std::all_of(all, all + values_.numel(),
                       [=](double x) { return x >= least && std::isfinite(x); });
  }
  /// The chunks of outputs [begin, begin + n) joined in order.
  template <Fold kFold>
  void join_chunks(int64_t begin, int64_t n, double* result) const {
    const double* partial = values_.data<double>() + begin;
    std::copy_n(partial, n, result);
    for (int64_t c = 1; c < chunks_; ++c) {
      partial += layout_.outputs;
      for (int64_t j = 0; j < n; ++j) result[j] = join<kFold>(result[j], partial[j]);
    }
  }

 private:
  template <Fold kFold, class Acc, class T>
  void fill_from(const Tensor& x, int64_t stride, const double* centres) {
    by_rows_ ? fill_rows<kFold, Acc, T>(x, stride, centres)
             : fill_columns<kFold, Acc, T>(x, stride, centres);
  }

  template <Fold kFold, class Acc, class T>
  void fill_rows(const Tensor& x, int64_t stride, const double* centres) {
    const ReduceLayout& l = layout_;
    const int64_t run = l.reduced.empty() ? 1 : l.reduced.back();
    double* const partial = values_.data<double>();
    const int64_t grain = std::max<int64_t>(1, 16384 / std::min(l.count, chunk_));
    parallel_for(l.outputs * chunks_, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
      HWY_ALIGN T buffer[64 * HWY_MAX_BYTES / sizeof(Acc)];
      const int64_t block = row_block<Acc>();
      OffsetWalk outputs(l.kept, l.kept_x, begin / chunks_);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t output = task / chunks_, chunk = task % chunks_;
        const Acc centre = centres ? static_cast<Acc>(centres[output]) : 0;
        const int64_t last = std::min(l.count, (chunk + 1) * chunk_);
        double total = initial<kFold, Acc>();
        int64_t at = chunk * chunk_;
        while (at < last) {
          const int64_t n = std::min({last - at, run - at % run, block});
          const int64_t offset = outputs.offset() + offset_at(l.reduced, l.reduced_x, at);
          const T* const row = read_block(x, offset, stride, n, buffer);
          total = join<kFold>(total, fold_block<kFold, Acc>(row, n, centre));
          at += n;
        }
        partial[chunk * l.outputs + output] = total;
        if (chunk == chunks_ - 1) outputs.next();
      }
    });
  }

  template <Fold kFold, class Acc, class T>
  void fill_columns(const Tensor& x, int64_t stride, const double* centres) {
    const ReduceLayout& l = layout_;
    // Rows in groups: a total stays in its register for all of them.
    constexpr int64_t kColumns = 1024, kRows = 16, kGroup = 4;
    const int64_t columns = l.kept.back();
    const int64_t blocks = (columns + kColumns - 1) / kColumns;
    const int64_t outer = l.outputs / columns;
    double* const partial = values_.data<double>();
    // Tasks next to each other read memory next to each other.
    const int64_t work = std::min(l.count, chunk_) * std::min(columns, kColumns);
    const int64_t grain = std::max<int64_t>(1, 16384 / work);
    parallel_for(outer * chunks_ * blocks, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
      HWY_ALIGN T buffers[kGroup][kColumns];
      HWY_ALIGN Acc totals[kColumns], centre[kColumns];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t block = task % blocks, chunk = task / blocks % chunks_;
        const int64_t row = task / blocks / chunks_;
        const int64_t first = block * kColumns, n = std::min(kColumns, columns - first);
        const int64_t output = row * columns + first;
        const int64_t base = offset_at(l.kept, l.kept_x, output);
        double* const out = partial + chunk * l.outputs + output;
        std::fill_n(out, n, initial<kFold, double>());
        for (int64_t j = 0; j < n; ++j) {
          centre[j] = centres ? static_cast<Acc>(centres[output + j]) : 0;
        }
        const int64_t last = std::min(l.count, (chunk + 1) * chunk_);
        OffsetWalk rows(l.reduced, l.reduced_x, chunk * chunk_);
        for (int64_t r = chunk * chunk_; r < last;) {
          std::fill_n(totals, n, initial<kFold, Acc>());
          const int64_t until = std::min(last, r + kRows);
          while (r < until) {
            const int64_t group = std::min(kGroup, until - r);
            const T* p[kGroup] = {};
            for (int64_t k = 0; k < group; ++k, ++r, rows.next()) {
              p[k] = read_block(x, base + rows.offset(), stride, n, buffers[k]);
            }
            // A whole group has its length known to the compiler.
            group == kGroup ? fold_rows<kFold, Acc>(p, kGroup, n, centre, totals)
                            : fold_rows<kFold, Acc>(p, group, n, centre, totals);
          }
          for (int64_t j = 0; j < n; ++j) out[j] = join<kFold>(out[j], totals[j]);
        }
      }
    });
  }

  const ReduceLayout& layout_;
  bool by_rows_;
  int64_t chunk_, chunks_;
  Tensor values_;
};

/// from_double without a call where the conversion is the compiler's.
template <class T>
HWY_INLINE T rounded(double x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(x);
  } else {
    return from_double<T>(x);
  }
}

/// y = what finish(begin, n, values) puts into values for outputs [begin, begin + n).
void store_outputs(const ReduceLayout& l, const Tensor& y,
                   const std::function<void(int64_t, int64_t, double*)>& finish) {
  constexpr int64_t kBlock = 1024;
  const int64_t stride = l.kept.empty() ? 1 : l.kept_y.back();
  const int64_t run = l.kept.empty() ? 1 : l.kept.back();
  visit_dtype(y.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_integral_v<T>) {
      parallel_for(l.outputs, 8 * kBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
        double values[kBlock];
        for (int64_t o = begin; o < end;) {
          const int64_t n = std::min({kBlock, end - o, run - o % run});
          finish(o, n, values);
          T* const out = y.data<T>() + offset_at(l.kept, l.kept_y, o);
          if (stride == 1) {
            for (int64_t j = 0; j < n; ++j) out[j] = rounded<T>(values[j]);
          } else {
            for (int64_t j = 0; j < n; ++j) out[j * stride] = rounded<T>(values[j]);
          }
          o += n;
        }
      });
    } else {
      WEFT_ASSERT(false);
    }
  });
}

template <Fold kFold, class Acc>
void one_pass(const ReduceProblem& p, const ReduceLayout& layout) {
  Partials partials(layout);
  partials.fill<kFold, Acc>(p.x, nullptr);
  if constexpr (kFold == Fold::kSquares && std::is_same_v<Acc, float>) {
    if (!partials.are_in_range(p.y.dtype())) return one_pass<kFold, double>(p, layout);
  }
  store_outputs(layout, p.y, [&](int64_t begin, int64_t n, double* values) HWY_ATTR {
    partials.join_chunks<kFold>(begin, n, values);
  });
}

template <class Acc>
void sum_or_variance(const ReduceProblem& p, const ReduceLayout& layout) {
  const double count = static_cast<double>(layout.count);
  Partials partials(layout);
  partials.fill<Fold::kSum, Acc>(p.x, nullptr);
  const double divisor = p.reduction == Reduction::kSum ? 1 : count;
  const auto means = [&](int64_t begin, int64_t n, double* values) HWY_ATTR {
    partials.join_chunks<Fold::kSum>(begin, n, values);
    if (divisor == 1) return;
    for (int64_t j = 0; j < n; ++j) values[j] /= divisor;
  };
  if (p.reduction != Reduction::kVar) return store_outputs(layout, p.y, std::ref(means));
  std::vector<double> mean(layout.outputs);
  means(0, layout.outputs, mean.data());
  partials.fill<Fold::kSquares, Acc>(p.x, mean.data());
  if constexpr (std::is_same_v<Acc, float>) {
    if (!partials.are_in_range(p.y.dtype())) return sum_or_variance<double>(p, layout);
  }
  store_outputs(layout, p.y, [&](int64_t begin, int64_t n, double* values) HWY_ATTR {
    partials.join_chunks<Fold::kSquares>(begin, n, values);
    for (int64_t j = 0; j < n; ++j) {
      // The squares were taken about the mean as Acc has it.
      const double m = mean[begin + j], shift = m - static_cast<double>(static_cast<Acc>(m));
      const double squares = values[j] - count * shift * shift;
      values[j] = (squares < 0 ? 0 : squares) / std::max(0.0, count - p.correction);
    }
  });
}

template <class Acc>
void run(const ReduceProblem& p) {
  const ReduceLayout layout = reduce_layout(p.x, p.y, true);
  if (layout.outputs == 0) return;
  WEFT_ASSERT(layout.count > 0 || !selects(p.reduction));
  if (p.reduction == Reduction::kMax) return one_pass<Fold::kMax, Acc>(p, layout);
  if (p.reduction == Reduction::kMin) return one_pass<Fold::kMin, Acc>(p, layout);
  const bool squares = p.reduction == Reduction::kSumSquares;
  if (layout.count > 0) {
    return squares ? one_pass<Fold::kSquares, Acc>(p, layout) : sum_or_variance<Acc>(p, layout);
  }
  const double empty = squares || p.reduction == Reduction::kSum ? 0 : NAN;
  store_outputs(layout, p.y,
                [&](int64_t, int64_t n, double* values) { std::fill_n(values, n, empty); });
}

void reduce_floats(const ReduceProblem& p) {
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(reduce_cpu_highway, ReduceProblem, reduce_floats)
#endif
