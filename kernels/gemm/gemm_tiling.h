// How gemm_cuda_wgmma cuts a product: the columns of its tiles of 128 rows, whether their K is
// streamed, consumers work in ping-pong, and blocks in pairs.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft::kernels {

/// Blocks that fill a device: the multiprocessors of an H200. A constant, so that every device cuts
/// alike and gives the same bits.
inline constexpr int64_t kTargetBlocks = 132;

/// Of K, in a step of 16-bit elements. Of tf32, twice as wide and half as fast, an element counts
/// as two of them.
inline constexpr int64_t kTilingDepth = 64;

struct GemmTiling {
  int rows = 128;   // of a tile: 128, or 256 of a tall one
  int columns = 0;  // 128, 192 or 256
  bool ping_pong = false;
  bool paired = false;
  int64_t tiles = 0;
  int64_t steps = 0;   // of kTilingDepth, of a tile
  int64_t length = 0;  // of a unit in steps, where K is streamed (gemm_cuda_stream.cuh); else 0
  int64_t waves = 0;   // of a tile, or of a unit, on each multiprocessor

  /// Share of the multiprocessors' time in all waves that products take.
  double occupied() const {
    const int64_t unit = length > 0 ? length : steps;
    return static_cast<double>(tiles * steps) / static_cast<double>(waves * unit * kTargetBlocks);
  }
};

/// Columns of a tile in ping-pong, whose 128 rows are in one consumer's registers: 192 sums.
inline constexpr int kPingPongColumns = 192;
/// Columns of a tall tile, each of whose consumers has 128 rows.
inline constexpr int kTallColumns = 192;

namespace tiling {

inline constexpr int64_t kRows = 128;
/// A unit of streamed K is deep enough that its products outweigh its sums' way through memory.
inline constexpr int64_t kLeastDepth = 256;
/// Tiles whose sums there is memory for.
inline constexpr int64_t kMostStreamed = 8 * kTargetBlocks;

/// Widths, with the time of a product in their tiles over that in the widest, and what their ends
/// take more than kEnd. An H100's, of ViT-B/16's products with 128 images, over the share of its
/// multiprocessors that the waves occupy: in tiles of 256 columns 760 TFLOP/s at 3072 of K and 653
/// at 768, of 192 726 and 638, in ping-pong 738 and 694, of 128 633 and 625, tall 737 and 651. At
/// 8192 cubed 256 columns had 804, tall tiles 833. Shared memory bounds them: of the 128 bytes that
/// it moves each clock, products in 128 columns would take 160 for reads and what TMA writes, 192
/// columns 138, 256 columns 128, tall tiles 122.
struct Width {
  int columns;
  double slowness;
  double end = 0;
  bool ping_pong = false;
  int64_t rows = kRows;

  /// Of sums in a block's registers, as they are asked for: of one tile, of both in ping-pong, of
  /// four times 64 rows.
  int held_columns() const { return columns * (ping_pong ? 2 : rows > kRows ? 4 : 1); }
  bool needs_tma_end() const { return held_columns() > 256; }
};
inline constexpr Width kWidths[] = {{256, 1.0, 130},
                                    {192, 1.06, 110},
                                    {kPingPongColumns, 1.07, 120, true},
                                    {128, 1.27},
                                    {kTallColumns, 1.02, 130, false, 2 * kRows}};

/// What pairs cost of that. Two blocks with the same columns of B load half of them each, of 256
/// columns 2 bytes in place of 3 for each column and k, but wait for one another: on an H100 every
/// width took 1 to 6% longer so, where others' kernels gained as much (from 704 to 734 TFLOP/s at
/// 256 columns and 4096 cubed, pranjalssh/fast.cu).
inline constexpr double kPairedCost = 0.04;

/// In columns times k of one multiprocessor's products: what a tile's end takes for each column;
/// 8 bytes of memory traffic, at 4 TB/s beside 132 multiprocessors at 800 TFLOP/s; and the kernel
/// that joins pieces, 3 us of it.
inline constexpr double kEnd = 44, kSumTraffic = 0.047, kJoin = 70e3;
/// What an instruction of the end on every element adds: 128 rows are one clock of a
/// multiprocessor, in which its tensor cores do 4096 operations, 16 of K of a column.
inline constexpr double kInstruction = 16;

/// What a block's `waves` tiles take for each column, whose products take `products`. In ping-pong
/// the first's products and the last's end stand alone; between them a consumer's end runs beside
/// the other's products, at worst in twice the time for lack of warps to change to, so that two
/// tiles take what two products take, or one's products and end.
inline double time_of(double waves, double products, double end, bool ping_pong) {
  if (!ping_pong) return waves * (products + end);
  return products + (waves - 1) * std::max(products, products / 2 + end) + end;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tiling

/// Steps of a unit of a stream through the K of tiles of `steps`: as many units as there are
/// multiprocessors, or fewer, of at least so many steps. 0 where there would be one.
inline int64_t stream_length(int64_t tiles, int64_t steps, int64_t least_steps,
                             int64_t most_units) {
  const int64_t units = std::min(most_units, tiles * steps / least_steps);
  return units > 1 ? tiling::ceil_div(tiles * steps, units) : 0;
}

/// What is chosen whatever it costs; 0 leaves it open.
struct ForcedTile {
  int columns = 0;       // of sums in a block: 128, 192 or 256 of a tile, 384 of two in ping-pong
  int blocks = 0;        // of a cluster: 1 or 2
  bool streams = false;  // K, where it is deep enough for two units
};

/// What comes after a tile's products, for each column, in units of tiling::kEnd; and whether it is
/// TMA's way, the one that ping-pong has registers for.
struct TileEnd {
  double time = tiling::kEnd;
  bool is_by_tma = true;
};

/// Columns, ping-pong, pairs and streams together, by what a product costs: waves of tiles, of
/// which narrow ones load more for each product, each with an end, which ping-pong hides; or equal
/// stretches of their K, and the f32 sums of its pieces, written and read again. Pairs have an even
/// number of rows of tiles, of which the last may be empty: that may cost a wave. Where there can
/// be no ping-pong, 384 columns that are forced are 192; a single row of tiles is never paired.
/// Sizes are at least 1.
inline GemmTiling choose_tiling(int64_t batches, int64_t m, int64_t n, int64_t k, bool may_stream,
                                const TileEnd& end = {}, ForcedTile forced = {}) {
  using namespace tiling;
  GemmTiling best;
  double least = 0;
  const auto consider = [&](const GemmTiling& tiling, double cost) {
    if (best.columns != 0 && cost >= least) return;
    best = tiling;
    least = cost;
  };
  if (forced.columns > 256 && !end.is_by_tma) forced.columns = kPingPongColumns;
  for (const Width& width : kWidths) {
    if (width.needs_tma_end() && !end.is_by_tma) continue;
    if (forced.columns != 0 && width.held_columns() != forced.columns) continue;
    const int columns = width.columns;
    const int64_t rows = ceil_div(m, width.rows);
    const int64_t tiles_of_row = batches * ceil_div(n, columns);
    for (const bool paired : {false, true}) {
      if (paired && rows == 1) continue;
      if (rows > 1 && forced.blocks != 0 && paired != (forced.blocks == 2)) continue;
      const int64_t even_rows = paired ? rows + rows % 2 : rows;
      GemmTiling tiling{.rows = static_cast<int>(width.rows),
                        .columns = columns,
                        .ping_pong = width.ping_pong,
                        .paired = paired,
                        .tiles = tiles_of_row * rows,
                        .steps = ceil_div(k, kTilingDepth),
                        .waves = ceil_div(tiles_of_row * even_rows, kTargetBlocks)};
      const double area = static_cast<double>(width.rows / kRows) * columns;
      const double slowness = width.slowness + (paired ? kPairedCost : 0);
      const auto products = [&](int64_t depth) { return slowness * static_cast<double>(depth); };
      const double whole = area * time_of(static_cast<double>(tiling.waves), products(k),
                                          end.time + width.end, width.ping_pong);
      GemmTiling stream = tiling;
      const int64_t tiles = tiles_of_row * even_rows, blocks = paired ? 2 : 1;
      if (may_stream && !width.needs_tma_end() && tiles <= kMostStreamed) {
        stream.length = stream_length(tiles / blocks, tiling.steps, kLeastDepth / kTilingDepth,
                                      kTargetBlocks / blocks);
      }
      if (!forced.streams || stream.length == 0) consider(tiling, whole);
      if (stream.length == 0) continue;
      stream.waves = 1;
      // Pieces of a unit, at most, and of all.
      const auto pieces = static_cast<double>(ceil_div(stream.length - 1, stream.steps) + 1);
      const auto all = static_cast<double>(tiles + kTargetBlocks);
      consider(stream, area * (products(stream.length * kTilingDepth) + pieces * kEnd) +
                           kSumTraffic * all * static_cast<double>(kRows) * area + kJoin);
    }
  }
  return best;
}

}  // namespace weft::kernels
