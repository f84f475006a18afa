// A plane (n, c) at a time. It is widened to f32 (f64 for f64) and split by phase: element (h, w)
// of the padded plane lies at [h % stride][w % stride] [h / stride][w / stride']. What one element
// of the window contributes to the outputs is then contiguous whatever the stride, a row's outputs
// following the last row's at a pitch that is the same for all phases, so every loop runs over the
// outputs of a whole plane at once. The few between the rows are computed in vain. The split plane
// stays in cache; the limiter is memory, and for the positions of maxima, compare and blend.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pool2d/pool2d_cpu_planes.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "kernels/pool2d/pool2d.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Sizes of a problem and the layout of its split planes.
struct Geometry {
  const Pool2dProblem& p;
  const int64_t H = p.image().size(2), W = p.image().size(3);
  const int64_t P = p.result().size(2), Q = p.result().size(3);
  const std::array<int64_t, 2>&kernel = p.kernel, &stride = p.stride;
  const std::array<int64_t, 2>&padding = p.padding, &dilation = p.dilation;
  const int64_t pitch = phase_length(Q, 1);  // from a row of a phase, or of outputs, to the next
  const int64_t phase_size = phase_length(P, 0) * pitch;
  const int64_t split_size = stride[0] * stride[1] * phase_size;     // of all phases
  const int64_t outputs = P > 0 && Q > 0 ? (P - 1) * pitch + Q : 0;  // of a plane, at their pitch

  int64_t size(int d) const { return d == 0 ? H : W; }
  /// Rows or columns of a phase: room for the image and for what `windows` windows read.
  int64_t phase_length(int64_t windows, int d) const {
    return std::max((size(d) - 1 + padding[d]) / stride[d] + 1,
                    windows + dilation[d] * (kernel[d] - 1) / stride[d]);
  }
  /// Where row h of the image begins in a split plane.
  int64_t split_row(int64_t h) const {
    const int64_t at = h + padding[0];
    return at % stride[0] * stride[1] * phase_size + at / stride[0] * pitch;
  }
  /// What output 0 reads as window element (r, s): output i reads what lies i further.
  int64_t split_offset(int64_t r, int64_t s) const {
    const int64_t row = r * dilation[0], column = s * dilation[1];
    return (row % stride[0] * stride[1] + column % stride[1]) * phase_size +
           row / stride[0] * pitch + column / stride[1];
  }
  /// Position in the image of the window element (o, r), perhaps outside.
  int64_t position(int64_t o, int64_t r, int d) const {
    return o * stride[d] - padding[d] + r * dilation[d];
  }
  /// The first position of window o inside the image.
  int64_t first_inside(int64_t o, int d) const {
    for (int64_t r = 0; r < kernel[d]; ++r) {
      if (position(o, r, d) >= 0) return position(o, r, d);
    }
    return 0;
  }
  /// Elements of window o that lie in the image or, if asked, its padding.
  int64_t inside(int64_t o, int d, bool include_pad) const {
    const int64_t pad = include_pad ? padding[d] : 0;
    int64_t n = 0;
    for (int64_t r = 0; r < kernel[d]; ++r) {
      const int64_t at = position(o, r, d);
      n += at >= -pad && at < size(d) + pad;
    }
    return n;
  }
  /// f(o, q) for every output, at a pitch; `rest` in between and for a vector behind.
  template <class T, class F>
  std::vector<T> at_pitch(T rest, int64_t slack, F&& f) const {
    std::vector<T> values(outputs + slack, rest);
    for (int64_t o = 0; o < P; ++o) {
      for (int64_t q = 0; q < Q; ++q) values[o * pitch + q] = static_cast<T>(f(o, q));
    }
    return values;
  }
};

/// One row of the image into its split place, or back (kJoin); `split` is that row's.
template <bool kJoin, class Acc>
void split_row(const Geometry& g, std::conditional_t<kJoin, Acc, const Acc>* HWY_RESTRICT row,
               std::conditional_t<kJoin, const Acc, Acc>* HWY_RESTRICT split) {
  const int64_t step = g.stride[1], pad = g.padding[1];
  if (step == 1) {
    if constexpr (kJoin) {
      std::copy_n(split + pad, g.W, row);
    } else {
      std::copy_n(row, g.W, split + pad);
    }
    return;
  }
  // Where the columns w, w + step, ... lie.
  const auto place = [&](int64_t w) { return (w + pad) % step * g.phase_size + (w + pad) / step; };
  int64_t done = 0;
  if (step == 2) {
    const hn::ScalableTag<Acc> d;
    const int64_t lanes = hn::Lanes(d);
    const auto even = split + place(0), odd = split + place(1);
    for (; done + 2 * lanes <= g.W; done += 2 * lanes) {
      if constexpr (kJoin) {
        hn::StoreInterleaved2(hn::LoadU(d, even + done / 2), hn::LoadU(d, odd + done / 2), d,
                              row + done);
      } else {
        auto v0 = hn::Zero(d), v1 = hn::Zero(d);
        hn::LoadInterleaved2(d, row + done, v0, v1);
        hn::StoreU(v0, d, even + done / 2);
        hn::StoreU(v1, d, odd + done / 2);
      }
    }
  }
  for (int64_t first = done; first < std::min(done + step, g.W); ++first) {
    const auto part = split + place(first);
    for (int64_t w = first, i = 0; w < g.W; w += step, ++i) {
      if constexpr (kJoin) {
        row[w] = part[i];
      } else {
        part[i] = row[w];
      }
    }
  }
}

/// One element of the window: where output 0 reads it in the split plane, and its position in the
/// image, less what the output itself adds.
struct Term {
  int64_t from;
  int64_t at;
};

/// Window row by window row.
std::vector<Term> terms_of(const Geometry& g) {
  std::vector<Term> terms;
  terms.reserve(g.kernel[0] * g.kernel[1]);
  for (int64_t r = 0; r < g.kernel[0]; ++r) {
    for (int64_t s = 0; s < g.kernel[1]; ++s) {
      terms.push_back({g.split_offset(r, s), g.position(0, r, 0) * g.W + g.position(0, s, 1)});
    }
  }
  return terms;
}

template <class Acc>
using PositionOf = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<Acc>>>;

/// What every plane of a problem has in common; lists are at the outputs' pitch.
template <class Acc>
struct MaxPlan {
  const Geometry& g;
  int64_t slack;
  std::vector<Term> terms = terms_of(g);
  // Position inside the image of every window.
  std::vector<PositionOf<Acc>> first = g.at_pitch<PositionOf<Acc>>(
      0, slack,
      [this](int64_t o, int64_t q) { return g.first_inside(o, 0) * g.W + g.first_inside(q, 1); });
  // What an output adds to the position of a term.
  std::vector<PositionOf<Acc>> moved = g.at_pitch<PositionOf<Acc>>(
      0, slack, [this](int64_t o, int64_t q) { return o * g.stride[0] * g.W + q * g.stride[1]; });
};

/// Maxima of a split plane and, if asked, where they lie.
template <bool kWhere, class Acc>
void max_plane(const Geometry& g, const MaxPlan<Acc>& plan, const Acc* HWY_RESTRICT split,
               Acc* HWY_RESTRICT y, PositionOf<Acc>* HWY_RESTRICT where) {
  const hn::ScalableTag<Acc> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < g.outputs; i += lanes) {
    auto best = hn::Set(d, -std::numeric_limits<Acc>::infinity());
    auto place = hn::LoadU(di, plan.first.data() + i);
    const auto moved = hn::LoadU(di, plan.moved.data() + i);
    for (const Term& term : plan.terms) {
      const auto v = hn::LoadU(d, split + term.from + i);
      // A NaN takes the place of a number, and nothing takes the place of a NaN.
      const auto stays = hn::Or(hn::Le(v, best), hn::IsNaN(best));
      best = hn::IfThenElse(stays, best, v);
      if constexpr (kWhere) {
        const auto at = hn::Add(moved, hn::Set(di, static_cast<PositionOf<Acc>>(term.at)));
        place = hn::IfThenElse(hn::RebindMask(di, stays), place, at);
      }
    }
    hn::StoreU(best, d, y + i);
    if constexpr (kWhere) hn::StoreU(place, di, where + i);
  }
}

/// Sums by window row, then over rows: the error grows with R + S instead of R S.
template <class Acc>
void average_plane(const Geometry& g, const std::vector<Term>& terms,
                   const std::vector<Acc>& counts, const Acc* HWY_RESTRICT split,
                   Acc* HWY_RESTRICT y) {
  const hn::ScalableTag<Acc> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < g.outputs; i += lanes) {
    auto sum = hn::Zero(d);
    for (int64_t r = 0; r < g.kernel[0]; ++r) {
      auto row = hn::Zero(d);
      for (int64_t s = 0; s < g.kernel[1]; ++s) {
        row = hn::Add(row, hn::LoadU(d, split + terms[r * g.kernel[1] + s].from + i));
      }
      sum = hn::Add(sum, row);
    }
    hn::StoreU(hn::Div(sum, hn::LoadU(d, counts.data() + i)), d, y + i);
  }
}

/// The divisors of averages, at the outputs' pitch.
template <class Acc>
std::vector<Acc> counts_of(const Geometry& g, bool include_pad, int64_t slack) {
  return g.at_pitch<Acc>(1, slack, [&](int64_t o, int64_t q) {
    return g.inside(o, 0, include_pad) * g.inside(q, 1, include_pad);
  });
}

/// Calls f(begin, end) for chunks of planes (n, c): about 2^15 elements, whatever the number of
/// threads.
template <class F>
void for_each_chunk(const Geometry& g, F&& f) {
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, g.H * g.W));
  parallel_for(g.p.image().size(0) * g.p.image().size(1), grain, f);
}

/// Calls f(h, row) for the rows of a plane of t, widened; `buffer` has room for the plane.
template <class Acc, class F>
void for_each_row(const Tensor& t, int64_t plane, Acc* buffer, F&& f) {
  const Strides& strides = t.strides();
  const int64_t channels = t.shape()[1], rows = t.shape()[2], columns = t.shape()[3];
  const int64_t first = plane / channels * strides[0] + plane % channels * strides[1];
  if (strides[3] == 1 && strides[2] == columns) {
    const Acc* all = read_row(t.dtype(), t.raw(), first, 1, rows * columns, buffer);
    for (int64_t h = 0; h < rows; ++h) f(h, all + h * columns);
    return;
  }
  for (int64_t h = 0; h < rows; ++h) {
    f(h, read_row(t.dtype(), t.raw(), first + h * strides[2], strides[3], columns, buffer));
  }
}

/// The outputs without what lies between the rows.
template <class T, class To>
void close_ranks(const Geometry& g, const T* pitched, To* dense) {
  for (int64_t o = 0; o < g.P; ++o) std::copy_n(pitched + o * g.pitch, g.Q, dense + o * g.Q);
}

template <class Acc>
void forward(const Pool2dProblem& p) {
  const Geometry g{p};
  const bool is_max = p.kind == PoolKind::kMax;
  const int64_t slack = hn::Lanes(hn::ScalableTag<Acc>());
  const MaxPlan<Acc> plan{g, slack};
  const std::vector<Acc> counts =
      is_max ? std::vector<Acc>() : counts_of<Acc>(g, p.count_include_pad, slack);
  const Acc outside = is_max ? -std::numeric_limits<Acc>::infinity() : Acc{0};
  for_each_chunk(g, [&](int64_t begin, int64_t end) {
    std::vector<Acc> split(g.split_size + slack, outside), image(g.H * g.W);
    std::vector<Acc> pitched(g.outputs + slack), out(g.P * g.Q);
    std::vector<PositionOf<Acc>> where(g.outputs + slack);
    for (int64_t plane = begin; plane < end; ++plane) {
      for_each_row(p.x, plane, image.data(), [&](int64_t h, const Acc* row) {
        split_row<false, Acc>(g, row, split.data() + g.split_row(h));
      });
      const int64_t first = plane * g.P * g.Q;
      if (!is_max) {
        average_plane(g, plan.terms, counts, split.data(), pitched.data());
      } else if (p.indices.defined()) {
        max_plane<true>(g, plan, split.data(), pitched.data(), where.data());
        close_ranks(g, where.data(), p.indices.data<int32_t>() + first);
      } else {
        max_plane<false>(g, plan, split.data(), pitched.data(), where.data());
      }
      Acc* y = row_target(p.y.dtype(), p.y.raw(), first, 1, out.data());
      close_ranks(g, pitched.data(), y);
      write_row(y, g.P * g.Q, p.y.dtype(), p.y.raw(), first, 1);
    }
  });
}

template <class Acc>
void max_backward(const Pool2dProblem& p) {
  const Geometry g{p};
  const int32_t* indices = p.indices.data<int32_t>();
  for_each_chunk(g, [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(g.H * g.W), gradients(g.P * g.Q);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t first = plane * g.H * g.W;
      Acc* sums = row_target(p.dx.dtype(), p.dx.raw(), first, 1, buffer.data());
      std::fill_n(sums, g.H * g.W, Acc{0});
      for_each_row(p.dy, plane, gradients.data(), [&](int64_t o, const Acc* row) {
        const int32_t* where = indices + (plane * g.P + o) * g.Q;
        for (int64_t q = 0; q < g.Q; ++q) sums[where[q]] += row[q];
      });
      write_row(sums, g.H * g.W, p.dx.dtype(), p.dx.raw(), first, 1);
    }
  });
}

template <class Acc>
void average_backward(const Pool2dProblem& p) {
  const Geometry g{p};
  const std::vector<Term> terms = terms_of(g);
  const std::vector<Acc> counts = counts_of<Acc>(g, p.count_include_pad, 0);
  for_each_chunk(g, [&](int64_t begin, int64_t end) {
    std::vector<Acc> split(g.split_size), buffer(std::max(g.P * g.Q, g.W)), scaled(g.outputs);
    for (int64_t plane = begin; plane < end; ++plane) {
      std::ranges::fill(split, Acc{0});
      for_each_row(p.dy, plane, buffer.data(), [&](int64_t o, const Acc* dy) {
        const int64_t at = o * g.pitch;
        for (int64_t q = 0; q < g.Q; ++q) scaled[at + q] = dy[q] / counts[at + q];
      });
      // Backwards: an element then gets its additions in the order of the outputs. What lies
      // between the rows adds zeros.
      for (auto term = terms.rbegin(); term != terms.rend(); ++term) {
        Acc* HWY_RESTRICT to = split.data() + term->from;
        const Acc* HWY_RESTRICT add = scaled.data();
        for (int64_t i = 0; i < g.outputs; ++i) to[i] += add[i];
      }
      for (int64_t h = 0; h < g.H; ++h) {
        split_row<true, Acc>(g, buffer.data(), split.data() + g.split_row(h));
        write_row(buffer.data(), g.W, p.dx.dtype(), p.dx.raw(), (plane * g.H + h) * g.W, 1);
      }
    }
  });
}

template <class Acc>
void run(const Pool2dProblem& p) {
  if (!p.backward()) return forward<Acc>(p);
  if (p.kind == PoolKind::kMax) return max_backward<Acc>(p);
  average_backward<Acc>(p);
}

void pool2d_planes(const Pool2dProblem& p) {
  WEFT_ASSERT(p.image().dim() == 4 && p.result().dim() == 4);
  WEFT_ASSERT((p.backward() ? p.dx : p.y).is_contiguous());
  WEFT_ASSERT(!p.indices.defined() || p.indices.is_contiguous());
  WEFT_ASSERT(!p.backward() || p.kind == PoolKind::kAverage || p.indices.defined());
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(pool2d_cpu_planes, Pool2dProblem, pool2d_planes)
#endif
