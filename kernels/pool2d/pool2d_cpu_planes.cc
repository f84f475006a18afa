// A plane (n, c) at a time. Its rows are widened to f32 (f64 for f64) and split by column phase:
// column w of the padded plane lies at [w % stride][w / stride] of its row, so that what one window
// column contributes to a row of outputs is contiguous whatever the stride, and every loop over
// outputs runs over whole vectors. The split plane stays in cache; the limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pool2d/pool2d_cpu_planes.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "kernels/pool2d/pool2d.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Sizes of a problem, and the range of window rows and columns that lie inside the image.
struct Geometry {
  explicit Geometry(const Pool2dProblem& p)
      : H(p.image().shape()[2]),
        W(p.image().shape()[3]),
        P(p.result().shape()[2]),
        Q(p.result().shape()[3]),
        kernel(p.kernel),
        stride(p.stride),
        padding(p.padding),
        dilation(p.dilation),
        phase_size((padding[1] + std::max(W, Q * stride[1])) / stride[1] +
                   dilation[1] * (kernel[1] - 1) / stride[1] + 2),
        row_size(phase_size * stride[1]) {
    for (int64_t s = 0; s < kernel[1]; ++s) {
      const int64_t at = s * dilation[1];
      split_offset.push_back(at % stride[1] * phase_size + at / stride[1]);
    }
    first_column.resize(Q);
    for (int64_t q = 0; q < Q; ++q) first_column[q] = static_cast<int32_t>(first_inside(q, 1));
    count_columns.resize(Q);
    for (int64_t q = 0; q < Q; ++q) count_columns[q] = inside(q, 1, p.count_include_pad);
    count_rows.resize(P);
    for (int64_t o = 0; o < P; ++o) count_rows[o] = inside(o, 0, p.count_include_pad);
  }

  int64_t size(int d) const { return d == 0 ? H : W; }
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
  /// The divisor of an average.
  template <class Acc>
  Acc count(int64_t p, int64_t q) const {
    return static_cast<Acc>(count_rows[p] * count_columns[q]);
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

  int64_t H, W, P, Q;
  std::array<int64_t, 2> kernel, stride, padding, dilation;
  int64_t phase_size;  // columns of one phase, with room for every window
  int64_t row_size;    // all phases
  /// Where, in a split row, the elements begin that window column s reads for q = 0, 1, 2, ...
  std::vector<int64_t> split_offset;
  std::vector<int32_t> first_column;  // of window q inside the image
  std::vector<int64_t> count_columns, count_rows;
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

/// What one element of the windows in a row of outputs reads: output q takes from[q], which lies at
/// `at` + q stride in the plane.
template <class Acc>
struct Term {
  Acc* from;
  int64_t at;
};

/// The terms of output row p inside the image, window row by window row.
template <class Acc>
void list_terms(const Geometry& g, Acc* split, int64_t p, std::vector<Term<Acc>>& terms) {
  terms.clear();
  for (int64_t r = 0; r < g.kernel[0]; ++r) {
    const int64_t h = g.position(p, r, 0);
    if (h < 0 || h >= g.H) continue;
    for (int64_t s = 0; s < g.kernel[1]; ++s) {
      terms.push_back({split + h * g.row_size + g.split_offset[s], h * g.W + g.position(0, s, 1)});
    }
  }
}

template <class Acc>
using PositionOf = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<Acc>>>;

/// `where` enters as the first position inside the image of every window.
template <class Acc>
void max_row(const Geometry& g, const std::vector<Term<const Acc>>& terms, Acc* HWY_RESTRICT y,
             PositionOf<Acc>* HWY_RESTRICT where) {
  const hn::ScalableTag<Acc> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t q = 0; q < g.Q; q += lanes) {
    auto best = hn::Set(d, -std::numeric_limits<Acc>::infinity());
    auto place = hn::LoadU(di, where + q);
    const auto step = hn::Set(di, static_cast<PositionOf<Acc>>(g.stride[1]));
    const auto first = hn::Mul(hn::Iota(di, static_cast<PositionOf<Acc>>(q)), step);
    for (const Term<const Acc>& term : terms) {
      const auto v = hn::LoadU(d, term.from + q);
      // A NaN takes the place of a number, and nothing takes the place of a NaN.
      const auto stays = hn::Or(hn::Le(v, best), hn::IsNaN(best));
      const auto at = hn::Add(first, hn::Set(di, static_cast<PositionOf<Acc>>(term.at)));
      best = hn::IfThenElse(stays, best, v);
      place = hn::IfThenElse(hn::RebindMask(di, stays), place, at);
    }
    hn::StoreU(best, d, y + q);
    hn::StoreU(place, di, where + q);
  }
}

/// Sums by window row, then over rows: the error grows with R + S instead of R S.
template <class Acc>
void average_row(const Geometry& g, const std::vector<Term<const Acc>>& terms, int64_t p,
                 Acc* HWY_RESTRICT y) {
  const hn::ScalableTag<Acc> d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t rows = static_cast<int64_t>(terms.size()) / g.kernel[1];
  for (int64_t q = 0; q < g.Q; q += lanes) {
    auto sum = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) {
      auto row = hn::Zero(d);
      for (int64_t s = 0; s < g.kernel[1]; ++s) {
        row = hn::Add(row, hn::LoadU(d, terms[r * g.kernel[1] + s].from + q));
      }
      sum = hn::Add(sum, row);
    }
    hn::StoreU(sum, d, y + q);
  }
  for (int64_t q = 0; q < g.Q; ++q) y[q] /= g.count<Acc>(p, q);
}

/// Calls f(plane) for every plane (n, c), several to a chunk: about 2^15 elements, whatever the
/// number of threads. `make` makes what a chunk works in.
template <class Make, class F>
void for_each_plane(const Pool2dProblem& p, const Geometry& g, Make&& make, F&& f) {
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, g.H * g.W));
  parallel_for(p.image().shape()[0] * p.image().shape()[1], grain, [&](int64_t begin, int64_t end) {
    auto buffers = make();
    for (int64_t plane = begin; plane < end; ++plane) f(plane, buffers);
  });
}

/// Row h of a plane of t, widened; `buffer` has room for it.
template <class Acc>
const Acc* plane_row(const Tensor& t, int64_t plane, int64_t h, Acc* buffer) {
  const Strides& strides = t.strides();
  const int64_t channels = t.shape()[1];
  const int64_t first = plane / channels * strides[0] + plane % channels * strides[1];
  return read_row(t.dtype(), t.raw(), first + h * strides[2], strides[3], t.shape()[3], buffer);
}

template <class Acc>
void forward(const Pool2dProblem& p) {
  const Geometry g(p);
  const bool is_max = p.kind == PoolKind::kMax;
  struct Buffers {
    std::vector<Acc> split, row, out;
    std::vector<PositionOf<Acc>> where;
    std::vector<Term<const Acc>> terms;
  };
  const int64_t slack = hn::Lanes(hn::ScalableTag<Acc>());
  const auto make = [&] {
    const Acc outside = is_max ? -std::numeric_limits<Acc>::infinity() : Acc{0};
    return Buffers{std::vector<Acc>(g.H * g.row_size + slack, outside),
                   std::vector<Acc>(g.W),
                   std::vector<Acc>(g.Q + slack),
                   std::vector<PositionOf<Acc>>(g.Q + slack),
                   {}};
  };
  for_each_plane(p, g, make, [&](int64_t plane, Buffers& b) {
    for (int64_t h = 0; h < g.H; ++h) {
      split_row<false, Acc>(g, plane_row(p.x, plane, h, b.row.data()),
                            b.split.data() + h * g.row_size);
    }
    for (int64_t o = 0; o < g.P; ++o) {
      const int64_t at = (plane * g.P + o) * g.Q;
      list_terms<const Acc>(g, b.split.data(), o, b.terms);
      if (is_max) {
        const int32_t first_row = static_cast<int32_t>(g.first_inside(o, 0) * g.W);
        for (int64_t q = 0; q < g.Q; ++q) b.where[q] = first_row + g.first_column[q];
        max_row(g, b.terms, b.out.data(), b.where.data());
        if (p.indices.defined()) {
          std::copy_n(b.where.begin(), g.Q, p.indices.data<int32_t>() + at);
        }
      } else {
        average_row(g, b.terms, o, b.out.data());
      }
      write_row(b.out.data(), g.Q, p.y.dtype(), p.y.raw(), at, 1);
    }
  });
}

template <class Acc>
void max_backward(const Pool2dProblem& p) {
  const Geometry g(p);
  const int32_t* indices = p.indices.data<int32_t>();
  struct Buffers {
    std::vector<Acc> sums, row;
  };
  const auto make = [&] { return Buffers{std::vector<Acc>(g.H * g.W), std::vector<Acc>(g.Q)}; };
  for_each_plane(p, g, make, [&](int64_t plane, Buffers& b) {
    const int64_t first = plane * g.H * g.W;
    Acc* sums = row_target(p.dx.dtype(), p.dx.raw(), first, 1, b.sums.data());
    std::fill_n(sums, g.H * g.W, Acc{0});
    for (int64_t o = 0; o < g.P; ++o) {
      const Acc* row = plane_row(p.dy, plane, o, b.row.data());
      const int32_t* where = indices + (plane * g.P + o) * g.Q;
      for (int64_t q = 0; q < g.Q; ++q) sums[where[q]] += row[q];
    }
    write_row(sums, g.H * g.W, p.dx.dtype(), p.dx.raw(), first, 1);
  });
}

template <class Acc>
void average_backward(const Pool2dProblem& p) {
  const Geometry g(p);
  struct Buffers {
    std::vector<Acc> split, row, scaled;
    std::vector<Term<Acc>> terms;
  };
  const auto make = [&] {
    return Buffers{std::vector<Acc>(g.H * g.row_size),
                   std::vector<Acc>(std::max(g.Q, g.W)),
                   std::vector<Acc>(g.Q),
                   {}};
  };
  for_each_plane(p, g, make, [&](int64_t plane, Buffers& b) {
    std::fill(b.split.begin(), b.split.end(), Acc{0});
    for (int64_t o = 0; o < g.P; ++o) {
      const Acc* dy = plane_row(p.dy, plane, o, b.row.data());
      for (int64_t q = 0; q < g.Q; ++q) b.scaled[q] = dy[q] / g.count<Acc>(o, q);
      list_terms<Acc>(g, b.split.data(), o, b.terms);
      // Backwards: an element then gets its additions in the order of q.
      for (auto term = b.terms.rbegin(); term != b.terms.rend(); ++term) {
        Acc* HWY_RESTRICT to = term->from;
        const Acc* HWY_RESTRICT add = b.scaled.data();
        for (int64_t q = 0; q < g.Q; ++q) to[q] += add[q];
      }
    }
    for (int64_t h = 0; h < g.H; ++h) {
      split_row<true, Acc>(g, b.row.data(), b.split.data() + h * g.row_size);
      write_row(b.row.data(), g.W, p.dx.dtype(), p.dx.raw(), (plane * g.H + h) * g.W, 1);
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
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(pool2d_planes);

void pool2d_cpu_planes(const Pool2dProblem& problem) {
  WEFT_ASSERT(problem.image().dim() == 4 && problem.result().dim() == 4);
  WEFT_ASSERT((problem.backward() ? problem.dx : problem.y).is_contiguous());
  WEFT_ASSERT(!problem.indices.defined() || problem.indices.is_contiguous());
  WEFT_ASSERT(!problem.backward() || problem.kind == PoolKind::kAverage ||
              problem.indices.defined());
  HWY_DYNAMIC_DISPATCH(pool2d_planes)(problem);
}

}  // namespace weft::kernels
#endif
