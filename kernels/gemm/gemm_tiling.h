// How gemm_cuda_wgmma cuts a product: the columns of its tiles of 128 rows, and the parts of K.
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
  int columns = 0;    // of a tile: 128, 192 or 256
  int parts = 1;      // of K
  int64_t depth = 0;  // of a part; the last may be shorter
  int64_t tiles = 0;  // of all parts

  /// Share of the multiprocessors' time in all waves that tiles take.
  double occupied() const {
    const int64_t waves = (tiles + kTargetBlocks - 1) / kTargetBlocks;
    return static_cast<double>(tiles) / static_cast<double>(waves * kTargetBlocks);
  }
};

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
};
inline constexpr Width kWidths[] = {{256, 1.0}, {192, 1.03}, {128, 1.12}};

/// In columns times k of one multiprocessor's products: what a tile's end takes for each column,
/// and 8 bytes of memory traffic, at 4 TB/s beside 132 multiprocessors at 800 TFLOP/s.
inline constexpr double kEnd = 96, kSumTraffic = 0.047;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tiling

/// Columns and parts together, by what a product costs: waves of tiles, of which narrow ones load
/// more for each product, each with an end; and the f32 sums of parts, written and read again.
/// Where K is split, at least 95% of the multiprocessors' time is occupied if it can be.
/// forced_columns: these alone, or 0. Sizes are at least 1.
inline GemmTiling choose_tiling(int64_t batches, int64_t m, int64_t n, int64_t k, bool may_split,
                                int forced_columns = 0) {
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
  const int64_t most_parts = may_split ? std::clamp<int64_t>(k / kLeastDepth, 1, kTargetBlocks) : 1;
  for (const auto& [columns, slowness] : kWidths) {
    if (forced_columns != 0 && columns != forced_columns) continue;
    const int64_t tiles = batches * ceil_div(m, kRows) * ceil_div(n, columns);
    for (int64_t parts = 1; parts <= most_parts; ++parts) {
      const int64_t depth =
          parts == 1 ? k : ceil_div(ceil_div(k, parts), kTilingDepth) * kTilingDepth;
      if (parts > 1 && tiles * parts > kMostWaves * kTargetBlocks) break;
      if (ceil_div(k, depth) != parts) continue;
      Choice choice{{columns, static_cast<int>(parts), depth, tiles * parts}};
      const auto waves = static_cast<double>(ceil_div(choice.tiling.tiles, kTargetBlocks));
      choice.cost = waves * columns * slowness * (static_cast<double>(depth) + kEnd);
      if (parts > 1) choice.cost += kSumTraffic * static_cast<double>(batches * m * n * parts);
      consider(cheapest, choice);
      if (choice.tiling.occupied() >= kLeastOccupied) consider(fullest, choice);
    }
  }
  const bool fills = cheapest.tiling.parts > 1 && fullest.tiling.columns != 0;
  return fills ? fullest.tiling : cheapest.tiling;
}

}  // namespace weft::kernels
