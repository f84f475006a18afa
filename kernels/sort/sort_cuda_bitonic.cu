// Batcher's bitonic network (Batcher, "Sorting networks and their applications", AFIPS 1968) over
// lines padded to a power of two, on (key, place) pairs, no two of which are equal: so it is stable
// though the network is not. A block holds a tile of up to 1024 pairs in shared memory and does all
// steps within it at once; steps that reach further go through global memory, a launch each. Bound
// by global memory for long lines: log2(n / 1024)^2 / 2 passes.
#include "core/stream.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/elementwise/walk.h"
#include "kernels/sort/sort.h"
#include "kernels/sort/sort_key.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256, kTile = 1024;

struct Pair {
  uint64_t key;
  int64_t place;

  /// Places differ.
  __device__ bool goes_before(const Pair& other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
};

struct Sorting {
  Elements x, values, places;
  Pair* pairs;  // [lines, padded]
  int64_t lines, size, padded, kept;
  bool descending, is_floating;
  int dims;
  int64_t shape[kMaxDims];
  int64_t x_strides[kMaxDims], value_strides[kMaxDims], place_strides[kMaxDims];
  int64_t x_step, value_step, place_step;

  __device__ int64_t offset(int64_t line, const int64_t* strides) const {
    int64_t result = 0;
    for (int d = dims - 1; d >= 0; --d) {
      result += line % shape[d] * strides[d];
      line /= shape[d];
    }
    return result;
  }
};

/// What lies behind a line sorts behind all of it: its places are larger.
__global__ void __launch_bounds__(kThreads) sort_load_kernel(Sorting s) {
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       k < s.lines * s.padded; k += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t line = k / s.padded, i = k % s.padded;
    uint64_t key = ~uint64_t{0};
    if (i < s.size) {
      const int64_t at = s.offset(line, s.x_strides) + i * s.x_step;
      key = s.is_floating ? ordered_bits(load_one<double>(s.x, at))
                          : ordered_bits(load_one<int64_t>(s.x, at));
      if (s.descending) key = ~key;
    }
    s.pairs[k] = {key, i};
  }
}

/// Puts a pair of items at this distance in the order of its run: runs of `run` items ascend and
/// descend in turn, the last one of a line ascends.
__device__ void compare(Pair& a, Pair& b, int64_t place, int64_t run, int64_t padded) {
  const bool ascends = run == padded || (place & run) == 0;
  if (b.goes_before(a) == ascends) {
    const Pair kept = a;
    a = b;
    b = kept;
  }
}

/// The steps within tiles of runs of `first` to `last` items, a power of two each.
__global__ void __launch_bounds__(kThreads)
    sort_tile_kernel(Sorting s, int64_t first, int64_t last, int tile) {
  WEFT_SHARED(Pair, items, [kTile]);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t base = static_cast<int64_t>(blockIdx.x) * tile;
  for (int i = thread; i < tile; i += kThreads) items[i] = s.pairs[base + i];
  for (int64_t run = first; run <= last; run *= 2) {
    const int64_t longest = run / 2 < tile / 2 ? run / 2 : tile / 2;
    for (int distance = static_cast<int>(longest); distance > 0; distance /= 2) {
      __syncthreads();  // the step before has written
      for (int pair = thread; pair < tile / 2; pair += kThreads) {
        const int i = pair / distance * 2 * distance + pair % distance;
        compare(items[i], items[i + distance], (base + i) % s.padded, run, s.padded);
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < tile; i += kThreads) s.pairs[base + i] = items[i];
}

/// One step that reaches over tiles.
__global__ void __launch_bounds__(kThreads)
    sort_step_kernel(Sorting s, int64_t run, int64_t distance) {
  for (int64_t pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       pair < s.lines * s.padded / 2; pair += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = pair / distance * 2 * distance + pair % distance;
    compare(s.pairs[i], s.pairs[i + distance], i % s.padded, run, s.padded);
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads) sort_store_kernel(Sorting s) {
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < s.lines * s.kept;
       k += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t line = k / s.kept, i = k % s.kept;
    const int64_t place = s.pairs[line * s.padded + i].place;
    static_cast<Word*>(s.values.data)[s.offset(line, s.value_strides) + i * s.value_step] =
        static_cast<const Word*>(s.x.data)[s.offset(line, s.x_strides) + place * s.x_step];
    static_cast<int64_t*>(s.places.data)[s.offset(line, s.place_strides) + i * s.place_step] =
        place;
  }
}

}  // namespace

void sort_cuda_bitonic(const SortProblem& p) {
  if (p.values.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.x.dim(), "sort");
  Sorting s = {.x = Elements(p.x), .values = Elements(p.values), .places = Elements(p.places)};
  s.size = p.x.shape()[axis];
  s.kept = p.values.shape()[axis];
  s.lines = p.x.numel() / s.size;
  s.padded = 1;
  while (s.padded < s.size) s.padded *= 2;
  s.descending = p.descending;
  s.is_floating = is_floating(p.dtype());
  for (int d = 0; d < p.x.dim(); ++d) {
    if (d == axis) continue;
    s.shape[s.dims] = p.x.shape()[d];
    s.x_strides[s.dims] = p.x.strides()[d];
    s.value_strides[s.dims] = p.values.strides()[d];
    s.place_strides[s.dims] = p.places.strides()[d];
    ++s.dims;
  }
  s.x_step = p.x.strides()[axis];
  s.value_step = p.values.strides()[axis];
  s.place_step = p.places.strides()[axis];
  const int64_t items = s.lines * s.padded;
  const int64_t bytes = items * static_cast<int64_t>(sizeof(Pair));
  const Tensor workspace = Tensor::empty(Shape{bytes}, DType::u8, p.device());
  s.pairs = static_cast<Pair*>(workspace.raw());
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const int tile = static_cast<int>(s.padded < kTile ? s.padded : kTile);
  const auto tiles = static_cast<unsigned>(items / tile);
  WEFT_LAUNCH(sort_load_kernel, blocks_for(items, kThreads), kThreads, 0, stream, s);
  WEFT_LAUNCH(sort_tile_kernel, tiles, kThreads, 0, stream, s, int64_t{2}, int64_t{tile}, tile);
  for (int64_t run = 2 * tile; run <= s.padded; run *= 2) {
    for (int64_t distance = run / 2; distance >= tile; distance /= 2) {
      WEFT_LAUNCH(sort_step_kernel, blocks_for(items / 2, kThreads), kThreads, 0, stream, s, run,
                  distance);
    }
    WEFT_LAUNCH(sort_tile_kernel, tiles, kThreads, 0, stream, s, run, run, tile);
  }
  with_word(p.x.itemsize(), [&](auto word) {
    WEFT_LAUNCH(sort_store_kernel<decltype(word)>, blocks_for(s.lines * s.kept, kThreads), kThreads,
                0, stream, s);
  });
}

}  // namespace weft::kernels
