// What the wgmma rungs of gemm share: the blocks' walk over tiles of C, the ring of stages, and the
// way of a tile's sums out of registers.
//
// A block has three warpgroups, a producer and two consumers, of 64 rows of a tile each or of a
// tile in turns (gemm_cuda_wgmma.cu says how they meet). Behind the stages each consumer has shared
// memory of its own for 64 rows of part of its columns, 2 bytes each: what a whole tile would take
// is another stage, which hides more of the memory's latency than it costs to store part by part.
// Sums leave in one of these ways (Store):
//   - rounded to 16 bits there, from where TMA stores them while the next tile's products begin;
//   - so too under a GELU, where they are aux; threads then read eight of a row each, and store the
//     eight of C. Under dgelu they are the product as it is rounded first, and C alone is stored;
//   - where C is f32, not addressable by TMA, or anything else is to be done to an element, each
//     warp lays half of a part's columns there in f32 and lanes take columns.
// Sums of a piece of a tile, whose K is streamed, go as they are to the kernel that joins them.
#pragma once

#include "kernels/device/barrier.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/gelu.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/mma.h"
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma.h"
#include "kernels/gemm/gemm_cuda_stream.cuh"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels::wgmma_tiles {

inline constexpr int kRows = 128;  // of a tile of C, or half of a tall one's
inline constexpr int kConsumers = 2, kConsumerThreads = kWarpgroupThreads;
inline constexpr int kThreads = (1 + kConsumers) * kConsumerThreads;
// A stage holds a line of K of each row of A and column of B.
template <int kCols, int kTileRows = kRows>
inline constexpr int kStageBytes = (kTileRows + kCols) * kLine;
inline constexpr int kBlockRows = 64;  // of a tile, that a warpgroup's wgmma has
inline constexpr int kWarpRows = kBlockRows / 4, kGroups = kRows / kWarpRows;
/// Registers of a thread after the producer has given up some of its own: 40 + 2 x 232 of 504.
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

/// Columns of a consumer's part of a tile, and the shared memory of the consumers.
template <int kCols>
inline constexpr int kPartCols = kCols > 192 ? kCols / 2 : kCols;
template <int kCols>
inline constexpr int kPartBytes = kBlockRows* kPartCols<kCols> * 2;
template <int kCols>
inline constexpr int kBufferBytes = kConsumers*(kPartBytes<kCols> + kCols * 4);

/// One consumer's.
struct Buffer {
  char* store;    // its sums, of one part after another
  float* shifts;  // the bias of each column
  int barrier;    // of its threads

  template <int kCols>
  static __device__ __forceinline__ Buffer of(char* buffers, int consumer) {
    return {buffers + consumer * kPartBytes<kCols>,
            reinterpret_cast<float*>(buffers + kConsumers * kPartBytes<kCols>) + consumer * kCols,
            1 + consumer};
  }
  __device__ __forceinline__ void meet() const {
    ptx::named_barrier_sync(barrier, kConsumerThreads);
  }
};

/// The tiles of all batches, in columns of 8, so that blocks that run together share rows of A and
/// columns of B in the second-level cache; where K is streamed in whole columns, whose tiles are at
/// different places of K, but at the same ones as their neighbours of the next column, with whom
/// they share rows. Where two blocks are a cluster, a row is two rows of tiles, one for each: they
/// share columns of B in shared memory. Divisions of 64 bits would cost registers.
struct TileOrder {
  uint32_t rows, cols, batches, blocks;
  uint32_t height;  // of a tile, times kRows: 2 of tall ones
  uint32_t group;   // rows of a column
  uint32_t step;    // of a block's walk

  /// In kRows, of all tiles, which may end below C.
  __host__ __device__ int64_t tile_rows() const { return int64_t{rows} * blocks * height; }
  __device__ __forceinline__ uint32_t first() const { return blockIdx.x / blocks; }
};

/// One of them, of a block of its cluster.
struct TilePlace {
  int row, col, batch;  // row in kRows

  __device__ __forceinline__ TilePlace(const TileOrder& order, uint32_t index, uint32_t rank) {
    const uint32_t within = index % (order.rows * order.cols);
    batch = static_cast<int>(index / (order.rows * order.cols));
    const uint32_t first = within / (order.group * order.cols) * order.group;
    const uint32_t height = min(order.group, order.rows - first);
    const uint32_t rest = within - first * order.cols;
    row = static_cast<int>(((first + rest % height) * order.blocks + rank) * order.height);
    col = static_cast<int>(rest / height);
  }
};

/// The way of sums out of registers.
enum class Store : uint8_t { kTma, kGelu, kDgelu, kElements };

/// A kernel's arguments beside the tensor maps.
struct Arguments {
  GemmArguments p;
  TileOrder order;
  Stream stream;
  float* pieces = nullptr;  // of streamed tiles: [slots, blocks of a cluster, a tile's sums]
  ColumnPartials<float> partials;
  Store store;
  bool repeats_a, repeats_b;  // one matrix for all batches

  /// Calls f(tile, slot, first step, steps) for the pieces of this block.
  template <class F>
  __device__ __forceinline__ void for_each_piece(F f) const {
    const uint32_t rank = ptx::cluster_rank();
    stream.for_each_piece(
        order.first(), order.step, [&](uint32_t tile, uint32_t slot, int first, int steps) {
          f(TilePlace(order, tile, rank), slot * order.blocks + rank, first, steps);
        });
  }
};

/// Waits for the other block of a cluster of two.
__device__ __forceinline__ void meet_cluster(uint32_t blocks) {
  if (blocks == 1) return;
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

/// Readies a ring's barriers. full: the producer's announcement and the bytes of both tiles; empty:
/// one thread of each of a stage's readers, in all blocks of the cluster.
template <int kStages>
__device__ __forceinline__ void start_barriers(uint64_t* full, uint64_t* empty, uint32_t readers,
                                               uint32_t blocks) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], readers * blocks);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  meet_cluster(blocks);
}

/// Starts the copy of kLines rows of A (columns of B) from `first` on, a stage's depth from k0 on.
/// Boxes of part of the lines leave out those before the `skipped`; every block of the cluster that
/// `blocks` has a bit for gets them.
template <ptx::Major kMajor, int kLines>
__device__ __forceinline__ void load_tile(char* tile, const TensorMap& map, uint64_t* full,
                                          int first, int k0, int batch, int skipped = 0,
                                          uint16_t blocks = 0) {
  tile += skipped * kLine;
  const auto load = [&](char* to, int x, int y) {
    if (blocks == 0) {
      ptx::tma_load_3d(to, &map, full, x, y, batch);
    } else {
      ptx::tma_multicast_3d(to, &map, full, x, y, batch, blocks);
    }
  };
  if (kMajor == ptx::Major::kK) {
    load(tile, k0, first + skipped);
  } else {
    for (int i = 0; i < kLines / 64; ++i) load(tile + i * kAtom, first + 64 * i, k0 + skipped);
  }
}

/// The lines of a box of a tile of A (B).
template <ptx::Major kMajor, int kLines>
__host__ __device__ constexpr int box_lines(int depth) {
  return kMajor == ptx::Major::kK ? kLines : depth;
}

/// The producer's part: one thread fills a stage for every step of the block's tiles, `depth`
/// elements of K, once the consumers have emptied it. In a cluster each block brings its share of
/// the lines of B to both, once the consumers of both have emptied the stage; what comes before the
/// other has announced it counts against that.
template <int kCols, ptx::Major kA, ptx::Major kB, int kTileRows = kRows, int kStages>
__device__ __forceinline__ void produce(const Arguments& g, int depth, Ring<kStages>& ring,
                                        char* stages, uint64_t* full, uint64_t* empty,
                                        const TensorMap& map_a, const TensorMap& map_b) {
  ptx::setmaxnreg_dec<kProducerRegisters>();
  if (threadIdx.x != 0) return;
  const uint32_t blocks = g.order.blocks;
  const int share = box_lines<kB, kCols>(depth) / static_cast<int>(blocks);
  const int skipped = share * static_cast<int>(ptx::cluster_rank());
  const auto sharers = static_cast<uint16_t>(blocks == 1 ? 0 : (1 << blocks) - 1);
  g.for_each_piece([&](const TilePlace& tile, uint32_t, int first, int steps) {
    int step = g.stream.start(first, steps);
    for (int i = 0; i < steps; ++i, ring.advance()) {
      const int k0 = step * depth;
      char* const tile_a = stages + ring.stage * kStageBytes<kCols, kTileRows>;
      uint64_t* const barrier = &full[ring.stage];
      ptx::mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(barrier, kStageBytes<kCols, kTileRows>);
      load_tile<kA, kTileRows>(tile_a, map_a, barrier, tile.row * kRows, k0,
                               g.repeats_a ? 0 : tile.batch);
      load_tile<kB, kCols>(tile_a + kTileRows * kLine, map_b, barrier, tile.col * kCols, k0,
                           g.repeats_b ? 0 : tile.batch, skipped, sharers);
      if (++step == first + steps) step = first;
    }
  });
}

/// Brings the bias of a tile's columns. For the time of its first products: its last readers have
/// passed the barrier before the last tile's store, and the next ones pass that of round_part.
template <int kCols>
__device__ __forceinline__ void load_shifts(const Arguments& g, const Buffer& buffer,
                                            const TilePlace& tile) {
  if (g.store == Store::kElements) return;
  const GemmArguments& p = g.p;
  // Through shared memory: the addresses of a thread's own columns would be kept in registers
  // through the products.
#pragma unroll 1
  for (int i = reread_thread(); i < kCols; i += kConsumerThreads) {
    const int64_t column = int64_t{tile.col} * kCols + i;
    const bool has_bias = p.bias.elements && column < p.n;
    // -0 changes no sum.
    buffer.shifts[i] = has_bias ? load_one<float>(p.bias.elements, column * p.bias.column) : -0.0f;
  }
}

/// Rounds a part's sums, of columns from `column` of the tile on, to T into the consumer's buffer,
/// once its last ones there are no longer read.
template <class T, int kPart>
__device__ __forceinline__ void round_part(const Arguments& g, const Buffer& buffer, int column,
                                           const float (&sums)[kPart / 2]) {
  const int thread = reread_thread();
  // The last store has read the buffer: its issuer says so.
  if (thread == 0) ptx::tma_store_wait_read<0>();
  buffer.meet();
  const float scale = g.p.scale;
  const float* const shifts = buffer.shifts + column;
  round_into_boxes<T, kPart>(buffer.store, sums, [=](int c) {
    const auto shift = *reinterpret_cast<const Pack<float, 2>*>(shifts + c);
    return [=](int, int e, float x) { return x * scale + shift.values[e]; };
  });
}

/// Has TMA store what a consumer's buffer holds, of a tile's rows of a block, from a column of C
/// on.
template <int kPart>
__device__ __forceinline__ void store_by_tma(const TensorMap* map, const Buffer& buffer,
                                             const TilePlace& tile, int block, int column0) {
  ptx::fence_proxy_async();
  buffer.meet();
  if (threadIdx.x % kConsumerThreads != 0) return;
  for (int i = 0; i < kPart / 64; ++i) {
    ptx::tma_store_3d(map, buffer.store + i * kAtom, column0 + 64 * i,
                      tile.row * kRows + block * kBlockRows, tile.batch);
  }
  ptx::tma_store_commit();
}

/// Eight elements of 16 bits, in pairs.
using Eight = Pack<uint32_t, 4>;

/// A pair in f32.
template <class T>
__device__ __forceinline__ Pack<float, 2> widen_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}};
  } else {
    return {{widen(f16::from_bits(static_cast<uint16_t>(pair))),
             widen(f16::from_bits(static_cast<uint16_t>(pair >> 16)))}};
  }
}

/// Stores the C of a GELU, of what lies rounded at `rounded` of a consumer's buffer, kPart columns
/// from `part0` of C on: aux, or under dgelu the product. A thread takes the same eight columns of
/// each box of 64, of every 16th row. Under dgelu the next row's aux is under way while one is
/// computed.
template <class T, bool kIsDgelu, int kPart>
__device__ __forceinline__ void store_activated(const Arguments& g, const char* rounded,
                                                const TilePlace& tile, int block, int part0) {
  constexpr int kBoxes = kPart / 64, kChunk = 8, kChunks = 64 / kChunk;
  constexpr int kStep = kConsumerThreads / kChunks;
  const GemmArguments& p = g.p;
  const int thread = reread_thread();
  const int chunk = thread % kChunks, first = thread / kChunks;
  const int64_t row0 = int64_t{tile.row} * kRows + block * kBlockRows + first;
  const int rows = static_cast<int>(min(int64_t{kBlockRows}, p.m - row0));
  const int64_t column0 = part0 + kChunk * chunk;
  // Boxes that reach into C; n is a multiple of eight.
  const int boxes = static_cast<int>(min(int64_t{kBoxes}, (p.n - column0 + 63) / 64));
  const GemmArguments::Output to = p.output(tile.batch);
  const auto* aux =
      static_cast<const uint16_t*>(p.aux.elements.data) + to.aux + row0 * p.aux.row + column0;
  auto* c = static_cast<uint16_t*>(p.c.elements.data) + to.c + row0 * p.c.row + column0;
  const char* from = rounded + first * kLine + 16 * (chunk ^ first % 8);
  Eight next[kBoxes] = {};
  const auto load = [&](int row) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (row >= rows || box >= boxes) continue;
      next[box] = *reinterpret_cast<const Eight*>(aux + 64 * box);
    }
    aux += kStep * p.aux.row;
  };
  float totals[kBoxes][kChunk] = {};
  if constexpr (kIsDgelu) load(0);
#pragma unroll 1
  for (int row = 0; row < rows; row += kStep) {
    Eight arguments[kBoxes];
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) arguments[box] = next[box];
    if constexpr (kIsDgelu) load(row + kStep);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (box >= boxes) continue;
      Eight x = *reinterpret_cast<const Eight*>(from + box * kAtom);
#pragma unroll
      for (int j = 0; j < kChunk / 2; ++j) {
        const Pack<float, 2> value = widen_pair<T>(x.values[j]);
        const Pack<float, 2> argument = kIsDgelu ? widen_pair<T>(arguments[box].values[j]) : value;
        float y[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const NarrowGelu gelu(argument.values[e]);
          y[e] = kIsDgelu ? value.values[e] * gelu.derivative() : gelu.value();
        }
        x.values[j] = std::is_same_v<T, bf16> ? ptx::cvt_rn_bf16x2(y[0], y[1])
                                              : ptx::cvt_rn_f16x2(y[0], y[1]);
        if constexpr (kIsDgelu) {
          const Pack<float, 2> rounded = widen_pair<T>(x.values[j]);
          totals[box][2 * j] += rounded.values[0];
          totals[box][2 * j + 1] += rounded.values[1];
        }
      }
      *reinterpret_cast<Eight*>(c + 64 * box) = x;
    }
    from += kStep * kLine;
    c += kStep * p.c.row;
  }
  if constexpr (kIsDgelu) {
    if (!g.partials) return;
    // Four threads of a warp have the same columns; its 16 rows are a group of the column sums.
    const int64_t group =
        (tile.batch * g.order.tile_rows() + tile.row) * kGroups + block * 4 + thread / kWarp;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        float total = totals[box][i];
        total += __shfl_xor_sync(kAllLanes, total, kChunks);
        total += __shfl_xor_sync(kAllLanes, total, 2 * kChunks);
        if (thread % kWarp < kChunks && box < boxes) {
          g.partials.at(p, group, column0 + 64 * box + i) = total;
        }
      }
    }
  }
}

/// Finishes a consumer's sums one by one. A warp passes its rows through its part of the buffer,
/// half of a part's columns at a time, for lanes to own columns: accesses are whole lines, the sums
/// of columns need no shuffles, and what an element needs in registers is held once and not beside
/// every accumulator.
template <int kCols>
__device__ __forceinline__ void store_by_elements(const Arguments& g, const Buffer& buffer,
                                                  const TilePlace& tile, int block,
                                                  const float (&sums)[kCols / 2]) {
  constexpr int kHalf = kPartCols<kCols> / 2, kBatch = 8;
  const GemmArguments& p = g.p;
  const int thread = reread_thread();
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int64_t row0 = int64_t{tile.row} * kRows + (block * kBlockRows + kWarpRows * warp);
  const GemmArguments::Output to = p.output(tile.batch);
  // A warp's 16 rows are a group of the column sums.
  const int64_t group = (tile.batch * g.order.tile_rows() + tile.row) * kGroups + block * 4 + warp;
  float* const rows = reinterpret_cast<float*>(buffer.store) + warp * kWarpRows * kHalf;
  // Rows 0 to 3 in different banks.
  const auto at = [](int row, int column) { return row * kHalf + (column ^ (row % 4 * 8)); };
#pragma unroll
  for (int half = 0; half < kCols / kHalf; ++half) {
    __syncwarp();  // the last half has been read
#pragma unroll
    for (int i = 0; i < kHalf / 2; i += 2) {
      const int row = lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4);
      const int from = half * (kHalf / 2) + i;
      *reinterpret_cast<Pack<float, 2>*>(rows + at(row, column)) = {{sums[from], sums[from + 1]}};
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < kHalf; i += kWarp) {
      const int64_t column = int64_t{tile.col} * kCols + half * kHalf + i;
      if (column >= p.n) break;
      float total = 0;
#pragma unroll 1
      for (int first = 0; first < kWarpRows; first += kBatch) {
        const int64_t row = row0 + first;
        const int count = static_cast<int>(min(int64_t{kBatch}, max(int64_t{0}, p.m - row)));
        float x[kBatch];
#pragma unroll
        for (int r = 0; r < kBatch; ++r) x[r] = rows[at(first + r, i)];
        p.finish_rows(to, row, count, column, x);
#pragma unroll
        for (int r = 0; r < kBatch; ++r) total += x[r];
      }
      if (g.partials) g.partials.at(p, group, column) = total;
    }
  }
}

/// Sums of 64 rows of kCols columns as a warpgroup's threads hold them, four at a time.
template <int kCols>
struct HeldSums {
  using Four = Pack<float, 4>;
  static constexpr int kFours = kCols / 8;  // of a thread
  static constexpr int kSize = kBlockRows * kCols;

  Four* fours;

  __device__ __forceinline__ HeldSums(float* pieces, int64_t block)
      : fours(reinterpret_cast<Four*>(pieces + block * kSize)) {}
  __device__ __forceinline__ Four& at(int i, int thread) const {
    return fours[i * kConsumerThreads + thread];
  }
};

/// Leaves the sums of a piece of a tile, from block `first` of 64 rows on, to the kernel that joins
/// them.
template <int kCols, int kBlocks>
__device__ __forceinline__ void store_piece(const Arguments& g, uint32_t slot, int first,
                                            const float (&sums)[kBlocks][kCols / 2]) {
  const int blocks_of_tile = static_cast<int>(g.order.height) * kRows / kBlockRows;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const HeldSums<kCols> held(g.pieces, int64_t{slot} * blocks_of_tile + first + b);
#pragma unroll
    for (int i = 0; i < held.kFours; ++i) {
      const float* const x = sums[b] + 4 * i;
      held.at(i, reread_thread()) = {{x[0], x[1], x[2], x[3]}};
    }
  }
}

/// A consumer's sums of a tile's rows from block `first` on become C, of T where that has 16 bits
/// and C has, or a piece that another kernel joins. map: of C, or under a GELU of aux.
/// Several blocks are left to TMA alone.
template <class T, int kCols, int kBlocks>
__device__ __forceinline__ void store_tile(const Arguments& g, const TensorMap* map,
                                           const Buffer& buffer, const TilePlace& tile,
                                           uint32_t slot, int first,
                                           const float (&sums)[kBlocks][kCols / 2]) {
  if (g.pieces) return store_piece<kCols, kBlocks>(g, slot, first, sums);
  if constexpr (sizeof(T) == 2) {
    if (kBlocks > 1 || g.store != Store::kElements) {
      constexpr int kPart = kPartCols<kCols>, kParts = kCols / kPart;
#pragma unroll
      for (int i = 0; i < kBlocks * kParts; ++i) {
        const int block = first + i / kParts, column = i % kParts * kPart;
        const int column0 = tile.col * kCols + column;
        const float* const part = sums[i / kParts] + column / 2;
        round_part<T, kPart>(g, buffer, column, *reinterpret_cast<const float(*)[kPart / 2]>(part));
        if (g.store == Store::kDgelu) {
          buffer.meet();
          store_activated<T, true, kPart>(g, buffer.store, tile, block, column0);
          continue;
        }
        store_by_tma<kPart>(map, buffer, tile, block, column0);
        if (g.store == Store::kGelu) {
          store_activated<T, false, kPart>(g, buffer.store, tile, block, column0);
        }
      }
      return;
    }
  }
  if constexpr (kBlocks == 1) store_by_elements<kCols>(g, buffer, tile, first, sums[0]);
}

/// Says that a consumer has read a stage, to both blocks of a cluster.
__device__ __forceinline__ void release_stage(uint64_t* empty, uint32_t blocks) {
  const auto rank = static_cast<uint32_t>(reread_thread());
  if (rank < blocks) ptx::mbarrier_arrive_cluster(empty, rank);
}

/// To be called by a consumer's threads at their end: a block's shared memory outlives its stores.
__device__ __forceinline__ void wait_for_stores() {
  if (threadIdx.x % kConsumerThreads == 0) ptx::tma_store_wait_read<0>();
}

/// A matrix's map: boxes of `lines` lines of 128 bytes along the dimension without gaps.
inline TensorMap matrix_map(const TmaMatrix& matrix, DType dtype, uint32_t lines) {
  return make_tensor_map(
      {.base = matrix.base,
       .dtype = dtype,
       .rank = 3,
       .dims = {static_cast<uint64_t>(matrix.length), static_cast<uint64_t>(matrix.lines),
                static_cast<uint64_t>(matrix.batches)},
       .strides = {static_cast<uint64_t>(matrix.line_bytes),
                   static_cast<uint64_t>(matrix.batch_bytes)},
       .box = {kLine / static_cast<uint32_t>(itemsize(dtype)), lines, 1},
       .swizzle = TmaSwizzle::kBytes128});
}

/// C, or aux under gelu, where sums of all of K become 16-bit elements of it at once, in whole
/// chunks of eight under a GELU; else nothing.
inline std::optional<TmaMatrix> stored_by_tma(const GemmProblem& problem) {
  const int64_t batches = problem.c.numel() / (problem.m() * problem.n());
  const auto rows_of = [&](const Tensor& t) {
    std::optional<TmaMatrix> matrix = tma_matrix(t);
    const bool fits = matrix && !matrix->is_transposed && matrix->batches == batches;
    return fits ? matrix : std::nullopt;
  };
  if (problem.c.itemsize() != 2 || problem.accumulate || problem.residual.defined()) return {};
  const auto c = rows_of(problem.c);
  if (problem.epilogue == Epilogue::kNone || !c) return c;
  const auto aux = rows_of(problem.aux);
  return problem.n() % 8 == 0 && problem.aux.dtype() == problem.c.dtype() ? aux : std::nullopt;
}

/// Adds the pieces of a tile. A block has 64 rows of 32 columns, a thread what it would hold of
/// them.
constexpr int kJoinedColumns = 32;

template <int kCols>
__global__ void __launch_bounds__(kConsumerThreads)
    gemm_join_pieces_kernel(const __grid_constant__ Arguments g, bool has_vectors) {
  const GemmArguments& p = g.p;
  const uint32_t blocks_of_tile = g.order.height * kRows / kBlockRows;
  const uint32_t block = blockIdx.x % blocks_of_tile;
  const uint32_t rank = blockIdx.x / blocks_of_tile % g.order.blocks;
  const uint32_t tile = blockIdx.x / (blocks_of_tile * g.order.blocks);
  const TilePlace place(g.order, tile, rank);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int64_t row =
      int64_t{place.row} * kRows + block * kBlockRows + thread / kWarp * kWarpRows + lane / 4;
  constexpr int kFours = kJoinedColumns / 8;
  const int first = static_cast<int>(blockIdx.y) * kFours;
  Pack<float, 4> sums[kFours] = {};
  for (uint32_t u = g.stream.first_unit(tile); u <= g.stream.last_unit(tile); ++u) {
    const int64_t slot = int64_t{u + tile} * g.order.blocks + rank;
    const HeldSums<kCols> held(g.pieces, slot * blocks_of_tile + block);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const Pack<float, 4> more = held.at(first + i, thread);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i].values[e] += more.values[e];
    }
  }
  const GemmArguments::Output to = p.output(place.batch);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int64_t column = int64_t{place.col} * kCols + 8 * (first + i) + 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= p.m || column >= p.n) continue;
      const float* const x = sums[i].values + 2 * h;
      if (has_vectors) {
        *reinterpret_cast<Pack<float, 2>*>(static_cast<float*>(p.c.elements.data) + to.c +
                                           (row + 8 * h) * p.c.row + column) = {{x[0], x[1]}};
        continue;
      }
      p.finish(to, row + 8 * h, column, x[0]);
      if (column + 1 < p.n) p.finish(to, row + 8 * h, column + 1, x[1]);
    }
  }
}

/// A problem cut into tiles of 128 or 256 rows and kCols columns, with the memory that the kernel
/// needs beside it.
template <int kCols>
struct Plan {
  Arguments g = {};
  TensorMap map = {};  // where TMA stores: C, or aux
  Tensor pieces;       // undefined where tiles are whole
  std::optional<Remainder> rest;
  unsigned grid = 1;
  runtime::StreamHandle stream = nullptr;

  /// depth: of a step of K. length: of a unit where K is streamed, in steps, else 0. blocks: of a
  /// cluster, 1 or 2; height: of a tile, times kRows.
  Plan(const GemmProblem& problem, const TmaMatrix& a, const TmaMatrix& b, int depth,
       uint32_t length, unsigned blocks = 1, unsigned height = 1) {
    g.p = GemmArguments(problem);
    const unsigned columns = tiles(g.p.n, kCols), rows = tiles(g.p.m, kRows * height * blocks);
    const int64_t count = g.p.batches * rows * columns;
    const unsigned steps = tiles(g.p.k, depth);
    WEFT_ASSERT(count < int64_t{1} << 31);
    WEFT_ASSERT(length == 0 || count * steps < int64_t{1} << 31);
    const auto whole = static_cast<uint32_t>(count);
    g.stream = length > 0 ? Stream::of_length(whole, steps, length) : Stream::whole(whole, steps);
    constexpr uint32_t kGroup = 8;
    g.order = {.rows = rows,
               .cols = columns,
               .batches = static_cast<uint32_t>(g.p.batches),
               .blocks = blocks,
               .height = height,
               .group = length > 0 ? rows : kGroup,
               .step = 1};
    g.store = Store::kElements;
    if (length > 0) {
      pieces = Tensor::empty({g.stream.slots() * blocks, height * kRows, kCols}, DType::f32,
                             problem.device());
      g.pieces = pieces.data<float>();
    } else if (const auto out = stored_by_tma(problem)) {
      constexpr Store kStores[] = {Store::kTma, Store::kGelu, Store::kDgelu};
      g.store = kStores[static_cast<int>(problem.epilogue)];
      map = matrix_map(*out, problem.c.dtype(), kBlockRows);
    }
    g.repeats_a = a.batches == 1;
    g.repeats_b = b.batches == 1;
    rest.emplace(problem, g.p, KSplit{},
                 length > 0 ? 0 : g.p.batches * g.order.tile_rows() * kGroups);
    g.partials = rest->partials;
    const int64_t multiprocessors = runtime::limits(problem.device().index).multiprocessors;
    g.order.step =
        static_cast<uint32_t>(std::clamp<int64_t>(multiprocessors / blocks, 1, g.stream.units));
    grid = blocks * g.order.step;
    stream = current_stream_handle(problem.device());
  }

  /// What comes after the kernel.
  void finish(const GemmProblem& problem) const {
    if (g.pieces) {
      const unsigned blocks = g.stream.tiles * g.order.blocks * g.order.height * kRows / kBlockRows;
      WEFT_LAUNCH(gemm_join_pieces_kernel<kCols>, dim3(blocks, kCols / kJoinedColumns),
                  kConsumerThreads, 0, stream, g, split_k::joins_vectors(problem, g.p));
    }
    rest->finish(problem, g.p);
  }
};

}  // namespace weft::kernels::wgmma_tiles
