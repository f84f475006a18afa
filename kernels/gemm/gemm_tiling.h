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
  int columns = 0;  // of a tile: 128, 192 or 256
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

namespace tiling {

inline constexpr int64_t kRows = 128;
/// A part is deep enough that its products outweigh its sums' way through memory.
inline constexpr int64_t kLeastDepth = 256;
inline constexpr double kLeastOccupied = 0.95;
/// Beyond these a split gains nothing.
inline constexpr int64_t kMostWaves = 8;

/// Widths, with the time of a product in their tiles over that in the widest: bytes that they load
/// for each, (1 / 128 + 1 / columns), weighed against the tensor core's rate. Estimated.
struct Width {
  int columns;
  double slowness;
  bool ping_pong = false;

  /// Of sums in a block's registers: of one tile, or of both in ping-pong.
  int held_columns() const { return ping_pong ? 2 * columns : columns; }
};
inline constexpr Width kWidths[] = {
    {256, 1.0}, {192, 1.03}, {kPingPongColumns, 1.03, true}, {128, 1.12}};

/// What pairs save of that. Two blocks with the same columns of B load half of them each, a byte
/// less for each column and k: of 256 columns 2 in place of 3, of 192 2.3 in place of 3.3, of 128 3
/// in place of 4, out of the second-level cache. At 256 columns and 4096 cubed that took an H100
/// from 704 to 734 TFLOP/s (pranjalssh/fast.cu).
inline constexpr double kPairedGain = 1 - 704.0 / 734.0;

/// In columns times k of one multiprocessor's products: what a tile's end takes for each column,
/// and 8 bytes of memory traffic, at 4 TB/s beside 132 multiprocessors at 800 TFLOP/s.
inline constexpr double kEnd = 96, kSumTraffic = 0.047;
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

/// What comes after a tile's products, for each column, in units of tiling::kEnd; and whether it is
/// TMA's way, the one that ping-pong has registers for.
struct TileEnd {
  double time = tiling::kEnd;
  bool is_by_tma = true;
};

/// Columns, ping-pong, pairs and parts together, by what a product costs: waves of tiles, of which
/// narrow and lone ones load more for each product, each with an end, which ping-pong hides; and
/// the f32 sums of parts, written and read again. Pairs have an even number of rows of tiles, of
/// which the last may be empty: that may cost a wave. Where K is split, at least 95% of the
/// multiprocessors' time is occupied if it can be. forced_columns: held by a block, these alone, or
/// 0; where there can be no ping-pong, 384 are 192. Sizes are at least 1.
inline GemmTiling choose_tiling(int64_t batches, int64_t m, int64_t n, int64_t k, bool may_split,
                                const TileEnd& end = {}, int forced_columns = 0) {
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
  if (forced_columns == 2 * kPingPongColumns && !end.is_by_tma) forced_columns = kPingPongColumns;
  const int64_t rows = ceil_div(m, kRows);
  const int64_t most_parts = may_split ? std::clamp<int64_t>(k / kLeastDepth, 1, kTargetBlocks) : 1;
  for (const Width& width : kWidths) {
    if (width.ping_pong && !end.is_by_tma) continue;
    if (forced_columns != 0 && width.held_columns() != forced_columns) continue;
    const int columns = width.columns;
    const int64_t parts_end = width.ping_pong ? 1 : most_parts;
    const int64_t tiles_of_row = batches * ceil_div(n, columns);
    for (int64_t parts = 1; parts <= parts_end; ++parts) {
      const int64_t depth =
          parts == 1 ? k : ceil_div(ceil_div(k, parts), kTilingDepth) * kTilingDepth;
      const int64_t tiles = tiles_of_row * rows * parts;
      if (parts > 1 && tiles > kMostWaves * kTargetBlocks) break;
      if (ceil_div(k, depth) != parts) continue;
      for (const bool paired : {false, true}) {
        if (paired && rows == 1) continue;
        const int64_t even_rows = paired ? rows + rows % 2 : rows;
        const int64_t waves = ceil_div(tiles_of_row * even_rows * parts, kTargetBlocks);
        Choice choice{{.columns = columns,
                       .ping_pong = width.ping_pong,
                       .paired = paired,
                       .parts = static_cast<int>(parts),
                       .depth = depth,
                       .tiles = tiles,
                       .waves = waves}};
        const double products =
            (width.slowness - (paired ? kPairedGain : 0)) * static_cast<double>(depth);
        choice.cost =
            columns * time_of(static_cast<double>(waves), products, end.time, width.ping_pong);
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
