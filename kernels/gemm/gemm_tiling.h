// How gemm_cuda_wgmma cuts a product: the columns of its tiles of 128 rows, the parts of K, whether
// consumers work in ping-pong, and blocks in pairs.
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
  int parts = 1;      // of K
  int64_t depth = 0;  // of a part; the last may be shorter
  int64_t tiles = 0;  // of all parts
  int64_t waves = 0;  // of a tile on each multiprocessor

  /// Share of the multiprocessors' time in all waves that tiles take.
  double occupied() const {
    return static_cast<double>(tiles) / static_cast<double>(waves * kTargetBlocks);
  }
};

/// Columns of a tile in ping-pong, whose 128 rows are in one consumer's registers: 192 sums.
inline constexpr int kPingPongColumns = 192;
/// Columns of a tall tile, each of whose consumers has 128 rows.
inline constexpr int kTallColumns = 192;

namespace tiling {

inline constexpr int64_t kRows = 128;
/// A part is deep enough that its products outweigh its sums' way through memory.
inline constexpr int64_t kLeastDepth = 256;
inline constexpr double kLeastOccupied = 0.95;
/// Beyond these a split gains nothing.
inline constexpr int64_t kMostWaves = 8;

/// Widths, with the time of a product in their tiles over that in the widest, and what their ends
/// take more than kEnd. An H100's, of 8448 rows with 768 of K (3072 columns) and 3072 (768
/// columns), all waves full: in tiles of 256 columns 736 TFLOP/s at 3072 of K and 647 at 768, of
/// 192 671 and 648, in ping-pong 669 and 683, of 128 594 and 631. Narrow tiles load more for each
/// product: all of them take some 70 GB/s on each multiprocessor, out of the second-level cache.
/// The end of 256 columns is two parts, of which the second waits for the first one's store. Nobody
/// has timed tall tiles, which load a quarter less than 128 x 256: they cost what has none chosen.
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
inline constexpr Width kWidths[] = {{256, 1.0, 96},
                                    {192, 1.12},
                                    {kPingPongColumns, 1.12, 0, true},
                                    {128, 1.3},
                                    {kTallColumns, 1.2, 0, false, 2 * kRows}};

/// What pairs cost of that. Two blocks with the same columns of B load half of them each, of 256
/// columns 2 bytes in place of 3 for each column and k, but wait for one another: on an H100 every
/// width took 1 to 6% longer so, where others' kernels gained as much (from 704 to 734 TFLOP/s at
/// 256 columns and 4096 cubed, pranjalssh/fast.cu).
inline constexpr double kPairedCost = 0.04;

/// In columns times k of one multiprocessor's products: what a tile's end takes for each column,
/// and 8 bytes of memory traffic, at 4 TB/s beside 132 multiprocessors at 800 TFLOP/s.
inline constexpr double kEnd = 44, kSumTraffic = 0.047;
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

/// What is chosen whatever it costs; 0 leaves it open.
struct ForcedTile {
  int columns = 0;  // of sums in a block: 128, 192 or 256 of a tile, 384 of two in ping-pong
  int blocks = 0;   // of a cluster: 1 or 2
};

/// What comes after a tile's products, for each column, in units of tiling::kEnd; and whether it is
/// TMA's way, the one that ping-pong has registers for.
struct TileEnd {
  double time = tiling::kEnd;
  bool is_by_tma = true;
};

/// Columns, ping-pong, pairs and parts together, by what a product costs: waves of tiles, of which
/// narrow ones load more for each product, each with an end, which ping-pong hides; and
/// the f32 sums of parts, written and read again. Pairs have an even number of rows of tiles, of
/// which the last may be empty: that may cost a wave. Where K is split, at least 95% of the
/// multiprocessors' time is occupied if it can be. Where there can be no ping-pong, 384 columns
/// that are forced are 192; a single row of tiles is never paired. Sizes are at least 1.
inline GemmTiling choose_tiling(int64_t batches, int64_t m, int64_t n, int64_t k, bool may_split,
                                const TileEnd& end = {}, ForcedTile forced = {}) {
  using namespace tiling;
  struct Choice {
    GemmTiling tiling;
    double cost = 0;
  };
  // The cheapest of all, and of those that fill the device.
  Choice cheapest, fullest;
  const auto consider = [](Choice& best, const Choice& choice) {
    if (best.tiling.columns == 0 || choice.cost < best.cost) best = choice;
  };
  if (forced.columns > 256 && !end.is_by_tma) forced.columns = kPingPongColumns;
  const int64_t most_parts = may_split ? std::clamp<int64_t>(k / kLeastDepth, 1, kTargetBlocks) : 1;
  for (const Width& width : kWidths) {
    if (width.needs_tma_end() && !end.is_by_tma) continue;
    if (forced.columns != 0 && width.held_columns() != forced.columns) continue;
    const int columns = width.columns;
    const int64_t rows = ceil_div(m, width.rows);
    const int64_t parts_end = width.needs_tma_end() ? 1 : most_parts;
    const int64_t tiles_of_row = batches * ceil_div(n, columns);
    for (int64_t parts = 1; parts <= parts_end; ++parts) {
      const int64_t depth =
          parts == 1 ? k : ceil_div(ceil_div(k, parts), kTilingDepth) * kTilingDepth;
      const int64_t tiles = tiles_of_row * rows * parts;
      if (parts > 1 && tiles > kMostWaves * kTargetBlocks) break;
      if (ceil_div(k, depth) != parts) continue;
      for (const bool paired : {false, true}) {
        if (paired && rows == 1) continue;
        if (rows > 1 && forced.blocks != 0 && paired != (forced.blocks == 2)) continue;
        const int64_t even_rows = paired ? rows + rows % 2 : rows;
        const int64_t waves = ceil_div(tiles_of_row * even_rows * parts, kTargetBlocks);
        Choice choice{{.rows = static_cast<int>(width.rows),
                       .columns = columns,
                       .ping_pong = width.ping_pong,
                       .paired = paired,
                       .parts = static_cast<int>(parts),
                       .depth = depth,
                       .tiles = tiles,
                       .waves = waves}};
        const double products =
            (width.slowness + (paired ? kPairedCost : 0)) * static_cast<double>(depth);
        choice.cost =
            static_cast<double>(width.rows / kRows) * columns *
            time_of(static_cast<double>(waves), products, end.time + width.end, width.ping_pong);
        if (parts > 1) choice.cost += kSumTraffic * static_cast<double>(batches * m * n * parts);
        consider(cheapest, choice);
        if (choice.tiling.occupied() >= kLeastOccupied) consider(fullest, choice);
      }
    }
  }
  const bool fills = cheapest.tiling.parts > 1 && fullest.tiling.columns != 0;
  return fills ? fullest.tiling : cheapest.tiling;
}

}  // namespace weft::kernels
