// Every output's elements are cut into splits whose number depends on the shape alone; a kernel
// reduces each split, another joins them in order. No atomics: the bits are the same on every GPU.
//
// Where the elements that lie side by side belong to one output (rows) a block of 256 threads takes
// a split of one output; where they belong to neighbouring outputs (columns, as in the gradient of
// a bias) the 32 lanes of a warp take 32 outputs and the 8 warps of a block every eighth element.
//
// Floats are summed in f64, integers in i64. Memory-bound where f64 additions are cheap (compute
// capability 8.0 and 9.0).
//
// Sums and means of f32, bf16 and f16 over the rows of a matrix, which training's are, have a
// kernel of their own: 16 bytes a load and f32 additions, so few that the join alone is in f64.
// Memory-bound.
#include "core/stream.h"
#include "kernels/device/columns.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/instances.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/reduce_layout.h"

namespace weft::kernels {
namespace {

/// What a split is reduced to. place: where an extreme lies among its output's elements.
template <class Acc>
struct Partial {
  Acc value;
  int64_t place;
};

enum class Kind : uint8_t { kSum, kProduct, kSquares, kLargest, kSmallest, kCount };

template <class Acc>
__device__ Partial<Acc> nothing(Kind kind) {
  return {kind == Kind::kProduct ? Acc{1} : Acc{0}, -1};
}

/// Whether an extreme at place a goes before one at place b. A NaN goes before all numbers.
template <class Acc>
__device__ bool goes_before(Kind kind, const Partial<Acc>& a, const Partial<Acc>& b) {
  if (a.place < 0 || b.place < 0) return b.place < 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan && (!b_nan || a.place < b.place);
  if (a.value == b.value) return a.place < b.place;
  return kind == Kind::kLargest ? a.value > b.value : a.value < b.value;
}

template <class Acc>
__device__ Partial<Acc> join(Kind kind, const Partial<Acc>& a, const Partial<Acc>& b) {
  using Ring = std::conditional_t<std::is_integral_v<Acc>, uint64_t, Acc>;
  switch (kind) {
    case Kind::kProduct:
      return {static_cast<Acc>(static_cast<Ring>(a.value) * static_cast<Ring>(b.value)), -1};
    case Kind::kLargest:
    case Kind::kSmallest:
      return goes_before(kind, b, a) ? b : a;
    default:
      return {static_cast<Acc>(static_cast<Ring>(a.value) + static_cast<Ring>(b.value)), -1};
  }
}

/// One element as a partial result; centre: what squares are taken from.
template <class Acc>
__device__ Partial<Acc> of_element(Kind kind, Acc x, int64_t place, Acc centre) {
  switch (kind) {
    case Kind::kSquares:
      return join<Acc>(Kind::kProduct, {x - centre, -1}, {x - centre, -1});
    case Kind::kCount:
      return {static_cast<Acc>(x != 0 ? 1 : 0), -1};
    default:
      return {x, place};
  }
}

struct Axes {
  int dims;
  int64_t sizes[kMaxDims], strides[kMaxDims];

  __device__ int64_t offset(int64_t index) const {
    // The outermost axis takes what is left: one axis alone, as most have, is not divided.
    int64_t result = 0;
    for (int d = dims - 1; d > 0; --d) {
      const int64_t size = sizes[d];
      // Most tensors have fewer than 2^32 elements: 64-bit divisions are slow.
      if (index < int64_t{1} << 32 && size < int64_t{1} << 32) {
        const auto narrow = static_cast<uint32_t>(index), by = static_cast<uint32_t>(size);
        result += narrow % by * strides[d];
        index = narrow / by;
      } else {
        result += index % size * strides[d];
        index /= size;
      }
    }
    return result + index * strides[0];
  }
};

template <class Acc>
struct Splits {
  Elements x;
  Kind kind;
  Axes kept, reduced;
  int64_t outputs, count, splits, split_size;
  const double* means;     // of each output, for squares about them; null: about 0
  Partial<Acc>* partials;  // [splits, outputs]
};

/// What elements first, first + step, ... of a split of an output are reduced to.
template <class Acc>
__device__ Partial<Acc> reduce_elements(const Splits<Acc>& p, int64_t output, int64_t split,
                                        int first, int step) {
  const int64_t base = p.kept.offset(output);
  const Acc centre = p.means ? static_cast<Acc>(p.means[output]) : Acc{0};
  Partial<Acc> all = nothing<Acc>(p.kind);
  const int64_t end = (split + 1) * p.split_size < p.count ? (split + 1) * p.split_size : p.count;
  for (int64_t i = split * p.split_size + first; i < end; i += step) {
    const Acc x = load_one<Acc>(p.x, base + p.reduced.offset(i));
    all = join(p.kind, all, of_element(p.kind, x, i, centre));
  }
  return all;
}

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Block b: split b % splits of output b / splits.
template <class Acc>
__global__ void __launch_bounds__(kThreads, 4) reduce_rows_kernel(Splits<Acc> p) {
  WEFT_SHARED(Partial<Acc>, warps, [kWarps]);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t b = blockIdx.x; b < p.outputs * p.splits; b += gridDim.x) {
    const int64_t output = b / p.splits, split = b % p.splits;
    Partial<Acc> mine = reduce_elements(p, output, split, thread, kThreads);
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const Partial<Acc> other = {__shfl_xor_sync(kAllLanes, mine.value, distance),
                                  __shfl_xor_sync(kAllLanes, mine.place, distance)};
      mine = join(p.kind, mine, other);
    }
    __syncthreads();  // the last round's values are read
    if (thread % kWarp == 0) warps[thread / kWarp] = mine;
    __syncthreads();
    if (thread == 0) {
      for (int w = 1; w < kWarps; ++w) mine = join(p.kind, mine, warps[w]);
      p.partials[split * p.outputs + output] = mine;
    }
  }
}

/// Block (c, s): split s of the outputs 32 c .. 32 c + 31.
template <class Acc>
__global__ void __launch_bounds__(kThreads) reduce_columns_kernel(Splits<Acc> p) {
  WEFT_SHARED(Partial<Acc>, warps, [kWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kWarp + lane, split = blockIdx.y;
  const bool has_output = output < p.outputs;
  Partial<Acc> mine =
      has_output ? reduce_elements(p, output, split, warp, kWarps) : nothing<Acc>(p.kind);
  warps[warp][lane] = mine;
  __syncthreads();
  if (warp == 0 && has_output) {
    for (int w = 1; w < kWarps; ++w) mine = join(p.kind, mine, warps[w][lane]);
    p.partials[split * p.outputs + output] = mine;
  }
}

/// Elements of an output that a block of sum_columns_kernel adds: 16 of each warp, whose 8 sums
/// then meet, so that none passes through more than 24 additions.
constexpr int kGroup = 16 * kWarps;

struct ColumnGroups {
  const void* x;
  Axes kept;
  int64_t stride;  // of the reduced axis
  int64_t outputs, count;
  unsigned tiles;   // blocks side by side: outputs / (32 kVector)
  float* partials;  // [groups, outputs]
};

/// Block tiles g + t: group g of outputs from 32 kVector t on, of which a lane has kVector side by
/// side.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) sum_columns_kernel(ColumnGroups p) {
  constexpr int kColumns = kWarp * kVector, kAtOnce = 4;
  WEFT_SHARED(float, sums, [kWarps][kColumns]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t group = blockIdx.x / p.tiles;
  const int64_t first = int64_t{blockIdx.x % p.tiles} * kColumns;
  const int64_t output = first + lane * kVector;
  float mine[kVector] = {};
  if (output < p.outputs) {
    const int64_t end = min((group + 1) * kGroup, p.count);
    int64_t row = group * kGroup + warp;
    int64_t at = p.kept.offset(output) + row * p.stride;
    const int64_t step = kWarps * p.stride;
    const auto add = [&](auto rows) {
      float x[rows()][kVector];
#pragma unroll
      for (int r = 0; r < rows(); ++r) elements::load_as<T, kVector>(p.x, at + r * step, x[r]);
#pragma unroll
      for (int r = 0; r < rows(); ++r) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) mine[k] += x[r][k];
      }
      row += rows() * kWarps;
      at += rows() * step;
    };
    while (row + (kAtOnce - 1) * kWarps < end) add(std::integral_constant<int, kAtOnce>());
    while (row < end) add(std::integral_constant<int, 1>());
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) sums[warp][lane * kVector + k] = mine[k];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kColumns || first + column >= p.outputs) return;
  float total = sums[0][column];
  for (int w = 1; w < kWarps; ++w) total += sums[w][column];
  p.partials[group * p.outputs + first + column] = total;
}

struct Finish {
  Elements y;
  Axes kept_y;
  Reduction reduction;
  int64_t outputs, count, splits;
  double correction;
  double* means;  // written for the mean that variance needs; y is not
};

/// Writes what all elements of an output are reduced to.
template <class Acc>
__device__ void write_output(const Finish& f, int64_t output, const Partial<Acc>& all) {
  const double n = static_cast<double>(f.count);
  const int64_t at = f.kept_y.offset(output);
  if (f.means) {
    f.means[output] = static_cast<double>(all.value) / n;
    return;
  }
  switch (f.reduction) {
    case Reduction::kMean:
      store_one(f.y, at, static_cast<double>(all.value) / n);
      break;
    case Reduction::kVar: {
      const double divisor = n > f.correction ? n - f.correction : 0;
      store_one(f.y, at, static_cast<double>(all.value) / divisor);
      break;
    }
    case Reduction::kArgmax:
    case Reduction::kArgmin:
      store_one(f.y, at, all.place);
      break;
    case Reduction::kAny:
      store_one(f.y, at, static_cast<int64_t>(all.value > 0));
      break;
    case Reduction::kAll:
      store_one(f.y, at, static_cast<int64_t>(all.value == static_cast<Acc>(f.count)));
      break;
    default:
      store_one(f.y, at, all.value);
  }
}

/// Thread k joins the splits of output k and writes it.
template <class Acc>
__global__ void __launch_bounds__(kThreads)
    reduce_join_kernel(const Partial<Acc>* partials, Kind kind, Finish f) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (output >= f.outputs) return;
  Partial<Acc> all = nothing<Acc>(kind);
  for (int64_t s = 0; s < f.splits; ++s) {
    all = join(kind, all, partials[s * f.outputs + output]);
  }
  write_output(f, output, all);
}

/// The same of the groups of sum_columns_kernel: a block joins 32 outputs.
template <int kJoinWarps>
__global__ void __launch_bounds__(kWarp* kJoinWarps)
    join_columns_kernel(const float* partials, Finish f) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const double sum = sum_of_column<double, kJoinWarps>(partials, f.splits, f.outputs, output);
  if (threadIdx.y == 0 && output < f.outputs) write_output(f, output, Partial<double>{sum, -1});
}

Kind kind_of(Reduction reduction) {
  if (selects(reduction)) return wants_largest(reduction) ? Kind::kLargest : Kind::kSmallest;
  if (reduction == Reduction::kAny || reduction == Reduction::kAll) return Kind::kCount;
  if (reduction == Reduction::kVar || reduction == Reduction::kSumSquares) return Kind::kSquares;
  return reduction == Reduction::kProd ? Kind::kProduct : Kind::kSum;
}

Axes axes_of(const Shape& sizes, const Strides& strides) {
  Axes axes = {};
  axes.dims = sizes.size();
  for (int d = 0; d < axes.dims; ++d) {
    axes.sizes[d] = sizes[d];
    axes.strides[d] = strides[d];
  }
  return axes;
}

/// Whether the elements of neighbouring outputs lie side by side, for enough outputs.
bool are_columns(const ReduceLayout& layout) {
  return !layout.kept_x.empty() && std::abs(layout.kept_x.back()) == 1 && layout.outputs >= 8;
}

/// One pass over x: means is written by the first of variance's two, exact read by the second.
template <class Acc>
void pass(const ReduceProblem& p, const ReduceLayout& layout, Reduction reduction, double* means,
          const double* exact) {
  Splits<Acc> s = {.x = Elements(p.x),
                   .kind = kind_of(reduction),
                   .kept = axes_of(layout.kept, layout.kept_x),
                   .reduced = axes_of(layout.reduced, layout.reduced_x),
                   .outputs = layout.outputs,
                   .count = layout.count,
                   .means = exact};
  const bool columns = are_columns(layout);
  // Enough splits for a large GPU, none shorter than a thread's 16 elements.
  const int64_t blocks = columns ? (s.outputs + kWarp - 1) / kWarp : s.outputs;
  const int64_t shortest = columns ? 16 * kWarps : 16 * kThreads;
  s.splits = std::clamp<int64_t>(std::min(1024 / blocks, s.count / shortest), 1, 1024);
  s.split_size = (s.count + s.splits - 1) / s.splits;
  const int64_t bytes = s.splits * s.outputs * static_cast<int64_t>(sizeof(Partial<Acc>));
  const Tensor workspace = Tensor::empty(Shape{bytes}, DType::u8, p.device());
  s.partials = static_cast<Partial<Acc>*>(workspace.raw());
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (columns) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.splits));
    WEFT_LAUNCH(reduce_columns_kernel<Acc>, grid, kThreads, 0, stream, s);
  } else {
    WEFT_LAUNCH(reduce_rows_kernel<Acc>, blocks_for(s.outputs * s.splits, 1), kThreads, 0, stream,
                s);
  }
  const Finish finish{Elements(p.y), axes_of(layout.kept, layout.kept_y),
                      reduction,     s.outputs,
                      s.count,       s.splits,
                      p.correction,  means};
  const auto join_blocks = static_cast<unsigned>((s.outputs + kThreads - 1) / kThreads);
  WEFT_LAUNCH(reduce_join_kernel<Acc>, join_blocks, kThreads, 0, stream, s.partials, s.kind,
              finish);
}

/// Whether sum_columns_kernel can load `vector` outputs at once.
bool fit_vectors(const ReduceProblem& p, const ReduceLayout& layout, int vector) {
  const auto divides = [&](int64_t n) { return n % vector == 0; };
  return is_aligned(p.x, vector) && layout.kept_x.back() == 1 && divides(layout.kept.back()) &&
         std::all_of(layout.kept_x.begin(), layout.kept_x.end() - 1, divides) &&
         std::ranges::all_of(layout.reduced_x, divides);
}

/// A sum or mean of f32, bf16 or f16 over one axis, or over none, behind columns.
void sum_columns(const ReduceProblem& p, const ReduceLayout& layout) {
  constexpr int kVector = 8;
  const bool vectors = fit_vectors(p, layout, kVector);
  const int64_t columns = vectors ? kWarp * kVector : kWarp;
  const int64_t tiles = (layout.outputs + columns - 1) / columns;
  const int64_t groups = (layout.count + kGroup - 1) / kGroup;
  WEFT_CHECK(tiles * groups < int64_t{1} << 31, "{}: too many elements", p.describe());
  const Tensor partials = Tensor::empty(Shape{groups, layout.outputs}, DType::f32, p.device());
  const ColumnGroups of{.x = p.x.raw(),
                        .kept = axes_of(layout.kept, layout.kept_x),
                        .stride = layout.reduced_x.empty() ? 0 : layout.reduced_x[0],
                        .outputs = layout.outputs,
                        .count = layout.count,
                        .tiles = static_cast<unsigned>(tiles),
                        .partials = partials.data<float>()};
  const auto grid = static_cast<unsigned>(tiles * groups);
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto run = [&](auto zero) {
    with_flags(
        [&](auto vectors) {
          constexpr int kWidth = vectors() ? kVector : 1;
          WEFT_LAUNCH((sum_columns_kernel<decltype(zero), kWidth>), grid, kThreads, 0, stream, of);
        },
        vectors);
  };
  switch (p.dtype()) {
    case DType::bf16:
      run(bf16{});
      break;
    case DType::f16:
      run(f16{});
      break;
    default:
      run(0.0f);
  }
  const Finish finish{.y = Elements(p.y),
                      .kept_y = axes_of(layout.kept, layout.kept_y),
                      .reduction = p.reduction,
                      .outputs = layout.outputs,
                      .count = layout.count,
                      .splits = groups};
  const auto join_blocks = static_cast<unsigned>((layout.outputs + kWarp - 1) / kWarp);
  with_flags(
      [&](auto many) {
        constexpr int kJoinWarps = many() ? 32 : 8;
        WEFT_LAUNCH((join_columns_kernel<kJoinWarps>), join_blocks, dim3(kWarp, kJoinWarps), 0,
                    stream, partials.data<float>(), finish);
      },
      groups > 64);
}

bool fits_sum_columns(const ReduceProblem& p, const ReduceLayout& layout) {
  const bool in_f32 =
      p.dtype() == DType::f32 || p.dtype() == DType::bf16 || p.dtype() == DType::f16;
  const bool sums = p.reduction == Reduction::kSum || p.reduction == Reduction::kMean;
  return in_f32 && sums && are_columns(layout) && layout.reduced.size() <= 1 && layout.count > 0;
}

}  // namespace

void reduce_cuda_splits(const ReduceProblem& p) {
  const ReduceLayout layout = reduce_layout(p.x, p.y, !gives_place(p.reduction));
  if (layout.outputs == 0) return;
  WEFT_CHECK(layout.count > 0 || !selects(p.reduction), "{}: there are no elements to choose from",
             p.describe());
  if (fits_sum_columns(p, layout)) return sum_columns(p, layout);
  if (p.reduction == Reduction::kVar) {
    const Tensor means = Tensor::empty({layout.outputs}, DType::f64, p.device());
    pass<double>(p, layout, Reduction::kMean, means.data<double>(), nullptr);
    pass<double>(p, layout, Reduction::kVar, nullptr, means.data<double>());
  } else if (is_floating(p.x.dtype())) {
    pass<double>(p, layout, p.reduction, nullptr, nullptr);
  } else {
    pass<int64_t>(p, layout, p.reduction, nullptr, nullptr);
  }
}

}  // namespace weft::kernels
